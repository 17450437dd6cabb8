-- Puts a deferred task in the place of one that runs and has no retry left. The reply is 1, or 0 if that one has gone.
-- KEYS  1 the task, 2 the successor, 3 asynq's set of those that wait for a retry, 4 what Unique has locked, or 1 again
-- ARGV  1 the task's ID, 2 the successor's, 3 the successor's message, 4 when it is due (Unix s), 5 since when it is deferred,
--       and so on: see record.go
--
-- asynq frees what Unique locked when it completes the task that the lock names: so the lock gets the successor's name,
-- with the life that it has left.

local done = redis.call('HGET', KEYS[1], 'holdfast:successor')
if done == ARGV[2] then return 1 end -- sent before, and the answer got lost
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
