-- Makes a deferred task the next that asynq runs. The reply is 1; 2 if asynq has not put the task back yet; or 0 if it is no
-- longer deferred, or too far from the end of the queue to be found quickly.
-- KEYS  1 the task, 2 asynq's list of pending tasks, 3 its sorted set of tasks in state "retry"
-- ARGV  1 the task's ID, 2 the time (Unix ns), 3 how many entries of the list to search
--
-- asynq takes tasks from the right end of the list. It puts a task there too when a server that shuts down gives it back.

local state, deferred = unpack(redis.call('HMGET', KEYS[1], 'state', 'holdfast'))
if not state or not deferred then return 0 end
if state == 'active' then return 2 end
if state == 'pending' then -- it came back when its delay was over, at the left end
  if not redis.call('LPOS', KEYS[2], ARGV[1], 'MAXLEN', ARGV[3]) then return 0 end
  redis.call('LREM', KEYS[2], 1, ARGV[1])
elseif state ~= 'retry' or redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then
  return 0
end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'pending', 'pending_since', ARGV[2], 'holdfast:woken', 1)
return 1
