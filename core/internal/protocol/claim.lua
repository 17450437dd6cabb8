-- Raises the high-water mark of a name to a tick, unless somebody has raised it that far.
-- KEYS: 1 mark
-- ARGV: 1 tick, in µs
--       2 claimant, a nonce of this call
--       3 how far ahead of TIME a tick may be, 4 how far behind TIME, 5 the least distance from the mark; all in µs
-- Replies:
--   1           raised, by this call
--   0           the mark is beyond the tick already, or too near
--   2           the mark is this very tick, of another claimant. This call never had the tick, because nobody takes over an
--               equal tick
--   {-1, TIME}  the tick is too far ahead: its mark would shut out every honest tick until then; TIME in µs
--   {-2, TIME}  the tick is so old that its mark may have expired, and with it the memory of its run; TIME in µs
--
-- The mark is "tick claimant". It lives until every tick that it decides about is too old to be granted.

local mark = redis.call('GET', KEYS[1])
local last, claimant
if mark then last, claimant = string.match(mark, '^(%d+) (.+)$') end
if claimant == ARGV[2] then return 1 end -- sent before, and the answer got lost

local tick, ahead, behind, gap = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if tick > now + ahead then return {-1, now} end
if tick < now - behind then return {-2, now} end
if last == ARGV[1] then return 2 end
if last and tick < last + math.max(gap, 1) then return 0 end

-- Not shorter than before: the window of another call may be wider.
local life = math.max(math.ceil((tick + math.max(behind, gap) - now) / 1000) + 1000, redis.call('PTTL', KEYS[1]))
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2], 'PX', string.format('%.0f', life))
return 1
