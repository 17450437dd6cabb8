-- Raises the high-water mark of a name to a tick on one of several masters, for the time being: a claimant that does
-- not get most of them withdraws.
-- KEYS: 1 mark, 2 tombstone of this claimant
-- ARGV: 1 claimant, a nonce of this attempt
--       2 "tick ahead behind gap guard": the first four as for claim.lua; guard is 1 to refuse ticks that this server may
--         have granted before it started, and forgotten
-- Replies: {code, TIME, id of the run or '', ...}
--   1                     raised, by this attempt
--   0, tick, claimant     the mark is there already, or too near
--   -1, -2                see claim.lua
--   -3                    withdrawn before
--   -5, ms                the tick may have been granted before the server started; those that are claimed ms from now on
--                         will not have been; -1 if the server does not tell
--
-- The mark is "tick claimant tick' claimant'": the second pair is what it was before, "0 -" if nothing, "? ?" if that
-- is not known any more. The server grants no tick that is not larger, so one of a won claim stays: nobody withdraws it, and who
-- raised the mark beyond it brings it back on withdrawing. Where what was before that is not known, the mark stays as
-- high as it is.

local tick, ahead, behind, gap, guard = string.match(ARGV[2], '^(%d+) (%d+) (%d+) (%d+) (%d)$')
tick, ahead, behind, gap = tonumber(tick), tonumber(ahead), tonumber(behind), tonumber(gap)
local mark = redis.call('GET', KEYS[1])
local last, claimant
if mark then last, claimant = string.match(mark, '^(%d+) (%S+)') end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local up, run = started()

local function reply(code, ...) return {code, now, run or '', ...} end

if redis.call('EXISTS', KEYS[2]) == 1 then return reply(-3) end
if claimant == ARGV[1] then return reply(1) end
if tick > now + ahead then return reply(-1) end
if tick < now - behind then return reply(-2) end
if last and tick < last + math.max(gap, 1) then return reply(0, tonumber(last), claimant) end
if guard == '1' then
  -- The start was before this second was over, for the floors.
  local safe = up and (time[1] - up + 1) * 1000000 + ahead + gap
  if not up then return reply(-5, -1) end
  if tick <= safe then return reply(-5, math.max(1, math.ceil((safe - ahead - now) / 1000))) end
end

-- Not shorter than it was: another call's window may be wider.
local life = math.max(math.ceil((tick + math.max(behind, gap) - now) / 1000) + 1000, redis.call('PTTL', KEYS[1]))
local before = last and last .. ' ' .. claimant or '0 -'
redis.call('SET', KEYS[1], string.format('%.0f', tick) .. ' ' .. ARGV[1] .. ' ' .. before, 'PX', string.format('%.0f', life))
return reply(1)
