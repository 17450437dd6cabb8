-- Notes a deferred task, once however often it is deferred. The reply is 1.
-- KEYS[1]  the notes: what was deferred first comes first
-- ARGV     for how many ms the note may be of use, since when the task is deferred (Unix ms), the task
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
