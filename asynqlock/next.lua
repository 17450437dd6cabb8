-- Takes the first task off the notes, and returns it, or nil if there is none.
-- KEYS[1]  the notes
-- ARGV     the task that has run, whose own note is of no use any more, or ''
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('ZPOPMIN', KEYS[1])[1]
