-- Records in asynq's hash of a task that the task is deferred. The reply is 1, or 0 if the task is gone.
-- KEYS[1]  the task
-- ARGV[1]  the record: see record.go
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'holdfast', ARGV[1])
redis.call('HDEL', KEYS[1], 'holdfast:woken')
return 1
