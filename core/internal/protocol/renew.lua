-- Lengthens a lease that is still this owner's. Never shortens one.
-- KEYS: 1 lock
--       with a limit or a tag, behind held.lua: 2 fence, 3 the hash
-- ARGV: 1 owner
--       2 lease in ms, or 0 to ask without changing anything
-- Replies:
--   n > 0  held, for another n ms
--   0      not held by this owner
--   -1     held, and the key never expires: only if ARGV 2 is 0, and somebody made the key persistent
--
-- GETEX for the reason given in forget.lua.

local holder = redis.pcall('GETEX', KEYS[1])
if type(holder) == 'table' and holder.err then
  if string.find(holder.err, 'WRONGTYPE', 1, true) then return 0 end
  return holder
end
local lease = tonumber(ARGV[2])
if KEYS[2] then
  local at = {value = holder or nil, now = clock()}
  inside(at, ARGV[1])
  local token, left = again(at, ARGV[1], lease)
  return token and left or 0
end
if holder ~= ARGV[1] then return 0 end

local left = redis.call('PTTL', KEYS[1])
if lease == 0 then return left end
-- Even if that changes nothing: a WAIT behind it is about this write.
lease = math.max(left, lease)
redis.call('PEXPIRE', KEYS[1], lease)
return lease
