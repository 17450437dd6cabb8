-- Gives a task that has just been enqueued its place in the order of its key. The reply is 1; or 0 if it needs none: it has run by
-- now, or waits for its time or its group.
-- KEYS, ARGV 1 to 3 as in order.lua; 4 for how long the order is kept (ms), 5 the task's deadline (Unix s), or ''

local state = redis.call('HGET', KEYS[1], STATE)
if state ~= PENDING and state ~= ACTIVE and state ~= RETRY then return 0 end
enter(ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'holdfast:until', ARGV[5]) end
return 1
