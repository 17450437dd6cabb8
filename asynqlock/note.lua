-- Notes a deferred task, and returns the note.
-- KEYS[1]  the notes: what was deferred first comes first
-- ARGV     for how many ms it is deferred, since when (Unix ms), the task
local time = redis.call('TIME')
local due = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
local note = string.format('%.0f', due) .. ' ' .. ARGV[3]
redis.call('ZADD', KEYS[1], ARGV[2], note)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return note
