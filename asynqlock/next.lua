-- Removes the first task from the notes and returns it, or nil if there is none.
-- KEYS[1]  the notes, a sorted set of deferred tasks
-- ARGV[1]  the task that has just run, whose own note is removed too, or ''
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('ZPOPMIN', KEYS[1])[1]
