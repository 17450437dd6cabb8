-- Replaces a running task that has no retry left with a deferred successor. The reply is 1, or 0 if the task is gone.
-- KEYS  1 the task, 2 the successor, 3 asynq's sorted set of tasks in state "retry", 4 the key that Unique has locked, or 1 again
-- ARGV  1 the task's ID, 2 the successor's ID, 3 the successor's message, 4 when it is due (Unix s), 5 its record: see record.go
--
-- asynq frees Unique's lock when it completes the task that the lock names. So the lock gets the successor's name, and keeps
-- its time to live.

local done = redis.call('HGET', KEYS[1], 'holdfast:successor')
if done == ARGV[2] then return 1 end -- sent before, and the answer was lost
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'holdfast:successor', ARGV[2])
redis.call('HSET', KEYS[2], 'msg', ARGV[3], 'state', 'retry', 'holdfast', ARGV[5])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
if KEYS[4] ~= KEYS[1] then
  redis.call('HSET', KEYS[2], 'unique_key', KEYS[4])
  if redis.call('GET', KEYS[4]) == ARGV[1] then
    redis.call('SET', KEYS[4], ARGV[2], 'KEEPTTL')
  end
end
return 1
