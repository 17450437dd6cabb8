-- Has asynq run a deferred task next. The reply is 1; 2 if the task is not put back yet; or 0 if it is no longer deferred,
-- or so far from the end of the queue that it would take long to find.
-- KEYS  1 the task, 2 asynq's list of those that are to run, 3 its set of those that wait for a retry
-- ARGV  1 the task's ID, 2 the time (Unix ns), 3 how far to look
--
-- asynq takes tasks from the right end of the list, and when a server that shuts down gives a task back, puts it there, as this
-- does.

local state, deferred = unpack(redis.call('HMGET', KEYS[1], 'state', 'holdfast'))
if not state or not deferred then return 0 end
if state == 'active' then return 2 end
if state == 'pending' then -- it has come back by itself, to the left end
  if not redis.call('LPOS', KEYS[2], ARGV[1], 'MAXLEN', ARGV[3]) then return 0 end
  redis.call('LREM', KEYS[2], 1, ARGV[1])
elseif state ~= 'retry' or redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then
  return 0
end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'pending', 'pending_since', ARGV[2], 'holdfast:woken', 1)
return 1
