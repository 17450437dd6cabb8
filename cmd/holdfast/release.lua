-- Takes a lock from the owner that was seen, and from no other.
-- KEYS: 1 lock, 2 the hash of those that hold it together, 3 tombstone of the owner
-- ARGV: 1 value of the lock, its first 88 bytes
--       2 one owner of several, and 3 its token; '' and 0 to take the lock from all under that value
-- Replies: 1 taken, 0 the owner no longer holds the lock
--
-- For the scripts of holdfast this is a lease that ended a moment early, which each of them expects at any time. So nothing
-- else is to be done here. The fence keeps its last token: the next is larger. It still has the token of this owner as live,
-- so that the next acquire records it as lost, and so the owner's own release, if it comes, is told. The owner's next renewal
-- finds another value, or an end in the past, and reports the loss. The line is served by the next acquire, see release.go.

if redis.call('GETRANGE', KEYS[1], 0, 87) ~= ARGV[1] or ARGV[1] == '' then return 0 end
if ARGV[2] == '' then
  -- On one of several masters, the next renewal would bring the lock back, but for the tombstone.
  redis.call('SET', KEYS[3], '1', 'PX', math.max(0, redis.call('PTTL', KEYS[1])) + 60000)
  return redis.call('DEL', KEYS[1])
end

local h = redis.call('HMGET', KEYS[2], 'of', 'cap', '@' .. ARGV[2])
local cap, many, token = string.match(h[2] or '', '^(%d+%S*) (%d+) %d+ (%d+)$')
local ends, limit, own = string.match(h[3] or '', '^(%d+) (%d+) (%d+)$')
local time = redis.call('TIME')
if h[1] ~= ARGV[1] or not cap or own ~= ARGV[3] or tonumber(ends) * 1000 <= time[1] * 1000000 + time[2] then return 0 end
-- The third number of cap is a moment before which no lease inside ends: now there is one that has.
redis.call('HSET', KEYS[2], 'cap', cap .. ' ' .. many .. ' 0 ' .. token, '@' .. ARGV[2], '0 ' .. limit .. ' ' .. own)
return 1
