-- Takes the first task off the notes that is still deferred, and returns it.
-- KEYS[1]  the notes
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
while true do
  local first = redis.call('ZPOPMIN', KEYS[1])[1]
  if not first then
    return false
  end
  local due, task = string.match(first, '^(%d+) (.*)$')
  if tonumber(due) > now then
    return task
  end
end
