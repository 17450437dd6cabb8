-- Brings a deferred task back that asynq archives because it has no retries left. The reply is 1; 0 if that is not, or no
-- longer, what archives it; or -1 if asynq has not archived it yet.
-- KEYS  1 the task, 2, 3 asynq's sorted sets of archived tasks and of tasks to retry
-- ARGV  1 the task's ID, 2 when it is due (Unix s), 3 '1' before asynq knows of the deferral, else '0'
--
-- holdfast:kept says that the next one to archive the task is asynq, for a deferral. A task that was archived by hand, or
-- whose handler failed, stays where it is.

local state = redis.call('HGET', KEYS[1], STATE)
if state == ACTIVE and ARGV[3] == '1' then
  redis.call('HSET', KEYS[1], 'holdfast:kept', 1)
  return -1
end
if redis.call('HEXISTS', KEYS[1], 'holdfast:kept') == 0 then return 0 end
if state == ACTIVE then return -1 end
if state ~= ARCHIVED or redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[1], STATE, RETRY)
redis.call('HDEL', KEYS[1], 'holdfast:kept')
return 1
