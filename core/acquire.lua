-- Takes the lock if it is free.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner
-- ARGV: 1 owner, 2 lease in ms, 3 life of the fence in ms, longer than the lease
-- Replies:
--   n > 0                  held, n is the fencing token
--   {0, ms left, value}    somebody else holds it; ms left is -1 where the key never expires
--   -1                     this tenure was already undone
--   -2                     the token space (2^53) is used up

local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local holder = found[1]
if holder and holder ~= ARGV[1] then
  return {0, redis.call('PTTL', KEYS[1]), holder}
end

local last, live, since, lost = recall(found[2])
if holder then
  -- Asked before, and the answer got lost or is still on its way: the same token, never a shorter lease.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  if live ~= '0' then return tonumber(live) end
elseif found[3] then
  return -1
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = math.max(last + 1, now)
if token >= 9007199254740992 then return -2 end
local text = string.format('%.0f', token) -- past 10^14 Lua would write 1.7e+15

if live ~= '0' then
  lost = lost .. ' ' .. live
  local _, n = string.gsub(lost, '%d+', '')
  if n > 8 then -- the oldest goes, and with it the claim to know about tokens that old
    local oldest, rest = string.match(lost, '^ (%d+)(.*)$')
    since, lost = string.format('%.0f', oldest + 1), rest
  end
end
if since == '0' then since = text end

local life = ARGV[3]
if token > now then life = string.format('%.0f', life + math.ceil((token - now) / 1000)) end

-- MGET reads keys of another type as missing. NX keeps such a lock from being overwritten, and GET such a
-- fence: it makes SET refuse them.
if not holder and not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.pcall('GET', KEYS[1])
end
local old = redis.pcall('SET', KEYS[2], text .. ' ' .. text .. ' ' .. since .. lost, 'PX', life, 'GET')
if type(old) == 'table' and old.err then
  if not holder then redis.call('DEL', KEYS[1]) end
  return old
end
return token
