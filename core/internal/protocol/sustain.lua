-- Lengthens a lease on one of several masters, and takes the lock back if the server has forgotten it. Never shortens a
-- lease.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner
-- ARGV: 1 owner
--       2 "lease token block life": lease in ms, or 0 to ask without changing anything; for the others see vote.lua
-- Replies: those of renew.lua
--
-- A server that has forgotten the lock may be in quarantine, and counts all the same: the key would not be free if
-- somebody else had got the lock there meanwhile. Its fence is raised. Otherwise a tenure with a lower token could
-- follow this one, with the vote of this server. GETEX for the reason given in forget.lua.

local lease, token, block, life = string.match(ARGV[2], '^(%d+) (%d+) (%d+) (%d+)$')
local holder = redis.pcall('GETEX', KEYS[1])
if type(holder) == 'table' and holder.err then
  if string.find(holder.err, 'WRONGTYPE', 1, true) then return 0 end
  return holder
end
if holder and holder ~= ARGV[1] then return 0 end
lease = tonumber(lease)
if lease == 0 then return holder and redis.call('PTTL', KEYS[1]) or 0 end

local found = redis.call('MGET', KEYS[2], KEYS[3])
local fence = found[1]
if holder then
  lease = math.max(lease, redis.call('PTTL', KEYS[1]))
  redis.call('PEXPIRE', KEYS[1], lease)
  local _, live = recall(fence)
  if not fence or tonumber(live) >= tonumber(token) then return lease end
  local last, _, since, lost = recall(fence)
  fence = last .. ' 0 ' .. since .. lost -- a proposal of its own that came to nothing
else
  -- Even if a later token was recorded, which is that of a rival that did not get most masters. A holder that may have
  -- lost the lock asks first.
  if found[2] or not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', lease) then return 0 end
end
local time = redis.call('TIME')
local text, ahead = enter(fence, tonumber(token), tonumber(block), time[1] * 1000000 + time[2])
local old = redis.pcall('SET', KEYS[2], text, 'PX', string.format('%.0f', life + ahead), 'GET')
if type(old) == 'table' and old.err then
  if not holder then redis.call('DEL', KEYS[1]) end
  return old
end
return lease
