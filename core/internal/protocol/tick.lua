-- Raises the high-water mark of a name to a tick on one of several masters, for the time being: a claimant that does
-- not get most masters withdraws, see withdraw.lua.
-- KEYS: 1 mark, 2 tombstone of this claimant
-- ARGV: 1 claimant, a nonce of this attempt
--       2 "tick ahead behind gap guard": the first four in µs, as for claim.lua; guard is 1 to refuse the ticks that this
--         server may have granted before it started, and forgotten
-- Replies: {code, TIME in µs, id of the run or '', ...}, with these codes and what follows:
--   1                  raised, by this attempt
--   0, tick, claimant  the mark has that tick already, which is beyond this one or too near, for that claimant
--   -1, -2             see claim.lua
--   -3                 this attempt was withdrawn before
--   -5, ms             the tick may have been granted before the server started; ms until the server can grant ticks again,
--                      -1 if it does not report its start
--
-- The mark is "tick claimant tick' claimant'". The second pair is the mark before: "0 -" if there was none, "? ?" if
-- that is not known any more. The server grants only larger ticks. So the mark of a claim that was won stays: nobody
-- withdraws it, and a claimant that raised the mark beyond it brings it back on withdrawing. If the mark before is not
-- known, the mark stays as high as it is.

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
  -- The server started before the end of that second, because the times are floored.
  local safe = up and (time[1] - up + 1) * 1000000 + ahead + gap
  if not up then return reply(-5, -1) end
  if tick <= safe then return reply(-5, math.max(1, math.ceil((safe - ahead - now) / 1000))) end
end

-- Not shorter than before: the window of another call may be wider.
local life = math.max(math.ceil((tick + math.max(behind, gap) - now) / 1000) + 1000, redis.call('PTTL', KEYS[1]))
local before = last and last .. ' ' .. claimant or '0 -'
redis.call('SET', KEYS[1], string.format('%.0f', tick) .. ' ' .. ARGV[1] .. ' ' .. before, 'PX', string.format('%.0f', life))
return reply(1)
