-- Adds a deferred task to the notes, once, however often it is deferred. The reply is 1.
-- KEYS[1]  the notes, a sorted set: the task that was deferred first comes first
-- ARGV     1 how long the notes must be kept, in ms, 2 when the task was first deferred (Unix ms), 3 the task
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
