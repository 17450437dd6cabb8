-- Has asynq run next, of the tasks of a queue that are noted under a lock, those that were deferred first. The reply is how
-- many; 0 also if the queue is paused; or -1 if there is none that asynq has put back yet.
-- KEYS  1 the notes, 2 asynq's list of pending tasks, 3, 4 its sorted sets of tasks to retry and archived ones, 5 what says
--       that the queue is paused
-- ARGV  1 what the keys of tasks begin with, 2 the time (Unix ns), 3 how many tasks to wake, 4 how many entries of the list to
--       search, 5 the task that has just run, whose own note goes, or '', 6 when the first of those left is to look by itself at
--       the latest (Unix s), since the turn of a woken one can get lost
--
-- asynq takes tasks from the right end of the list. It puts a task there too when a server that shuts down gives it back.
--
-- A note can outlive its purpose: the task may have run, failed, or been archived or deleted by hand. Such a note goes. A task
-- that is active keeps its note: asynq is about to put it back. 1000 notes take a few ms, and 20 searches of the whole list.

redis.call('ZREM', KEYS[1], ARGV[5])
if redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
local next, active, id, deep = {}, 0, nil, 0
for i = 1, 1000 do
  id = redis.call('ZRANGE', KEYS[1], active, active)[1]
  if not id or #next == tonumber(ARGV[3]) or deep == 20 then break end
  local task = ARGV[1] .. id
  local state, deferred, kept, till = unpack(redis.call('HMGET', task, STATE, 'holdfast', 'holdfast:kept', 'holdfast:until'))
  if till and tonumber(till) * 1e9 <= tonumber(ARGV[2]) then deferred = false end -- it would take the turn, and fail
  if deferred and state == ACTIVE then
    active = active + 1
  else
    redis.call('ZREM', KEYS[1], id)
    local found = 0
    if deferred and state == RETRY then
      found = redis.call('ZREM', KEYS[3], id)
    elseif deferred and state == ARCHIVED and kept then -- see keep.lua
      found = redis.call('ZREM', KEYS[4], id)
    elseif deferred and state == PENDING then -- it came back when its delay was over, at the left end
      if redis.call('LPOS', KEYS[2], id, 'MAXLEN', ARGV[4]) then
        found = redis.call('LREM', KEYS[2], 1, id)
      else
        deep = deep + 1
      end
    end
    if found == 1 then next[#next + 1] = id end
  end
end
for i = #next, 1, -1 do
  local task = ARGV[1] .. next[i]
  redis.call('RPUSH', KEYS[2], next[i])
  redis.call('HSET', task, STATE, PENDING, PENDING_SINCE, ARGV[2], 'holdfast:woken', 1)
  redis.call('HDEL', task, 'holdfast:firsts', 'holdfast:kept')
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if first then redis.call('ZADD', KEYS[3], 'XX', 'LT', ARGV[6], first) end
if #next == 0 and (active > 0 or id) then return -1 end
return #next
