-- Takes the lock if it is free.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner
-- ARGV: 1 owner, 2 lease in ms, 3 how long the fence outlives the lease, in ms
-- Replies:
--   n > 0                  held, n is the fencing token
--   {0, ms left, value}    somebody else holds it; ms left is -1 where the key never expires
--   -1                     this tenure was already undone
--   -2                     the token space (2^53) is used up

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, redis.call('PTTL', KEYS[1]), holder}
end

local fence, err = recall(KEYS[2])
if not fence then return err end

if holder then
  -- Asked before, and the answer got lost or is still on its way: the same token, never a shorter lease.
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  if fence[2] > 0 then return fence[2] end
elseif redis.call('EXISTS', KEYS[3]) == 1 then
  return -1
end

local now = clock()
local token = math.max(fence[1] + 1, now)
if token >= 9007199254740992 then return -2 end

bury(fence)
if fence[3] == 0 then fence[3] = token end
fence[1] = token
fence[2] = token
if not holder then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
record(KEYS[2], fence, now, tonumber(ARGV[2]) + tonumber(ARGV[3]))
return token
