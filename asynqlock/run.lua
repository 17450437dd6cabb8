-- Has asynq run next, of the tasks of a queue that are noted under a lock, those whose turn it is: shares take turns, and within
-- a share the task that was deferred first comes first. The reply is how many; 0 also if the queue is paused; or -1 if there is
-- none that asynq has put back yet.
-- KEYS  1 the notes of tasks without a share, 2 asynq's list of pending tasks, 3, 4 its sorted sets of tasks to retry and archived
--       ones, 5 what says that the queue is paused, 6 the shares that have notes, see defer.lua; without it there are none
-- ARGV  1 what the keys of tasks begin with, 2 the time (Unix ns), 3 how many tasks to wake, 4 how many entries of the list to
--       search, 5 the task that has just run, whose own note goes, or '', 6 when the first of those left is to look by itself at
--       the latest (Unix s), since the turn of a woken one can get lost, 7 the share of the task that has just run, 8, 9 what a share is
--       put between for the key of its notes
--
-- asynq takes tasks from the right end of the list. It puts a task there too when a server that shuts down gives it back.
--
-- A note can outlive its purpose: the task may have run, failed, or been archived or deleted by hand. Such a note goes. A task
-- that is active keeps its note: asynq is about to put it back. 1000 notes take a few ms, and 20 searches of the whole list.

local shared = redis.call('EXISTS', KEYS[6]) == 1
local function notes(share)
  if share == '' then return KEYS[1] end
  return ARGV[8] .. share .. ARGV[9]
end
local function at(place) -- the share whose turn comes then
  if shared then return redis.call('ZRANGE', KEYS[6], place, place)[1] end
  return place == 0 and ''
end
local function drop(share, id)
  redis.call('ZREM', notes(share), id)
  if redis.call('EXISTS', notes(share)) == 0 then redis.call('ZREM', KEYS[6], share) end
end

drop(ARGV[7], ARGV[5])
if ARGV[3] == '0' or redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
local next, active, waits, place, deep, share = {}, {}, false, 0, 0, nil
for i = 1, 1000 do
  share = at(place)
  if not share or #next == tonumber(ARGV[3]) or deep == 20 then break end
  local first = active[share] or 0
  local id = redis.call('ZRANGE', notes(share), first, first)[1]
  local task = ARGV[1] .. (id or '')
  local state, deferred, kept, till = unpack(redis.call('HMGET', task, STATE, 'holdfast', 'holdfast:kept', 'holdfast:until'))
  if till and tonumber(till) * 1e9 <= tonumber(ARGV[2]) then deferred = false end -- it would take the turn, and fail
  if not id then
    if first > 0 or not shared then place = place + 1 else redis.call('ZREM', KEYS[6], share) end
  elseif deferred and state == ACTIVE then
    active[share], waits = first + 1, true
  else
    drop(share, id)
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
    if found == 1 then
      next[#next + 1] = id
      local last = redis.call('ZRANGE', KEYS[6], -1, -1, 'WITHSCORES')[2]
      if last then redis.call('ZADD', KEYS[6], 'XX', last + 1, share) end
    end
  end
end
for i = #next, 1, -1 do
  local task = ARGV[1] .. next[i]
  redis.call('RPUSH', KEYS[2], next[i])
  redis.call('HSET', task, STATE, PENDING, PENDING_SINCE, ARGV[2], 'holdfast:woken', 1)
  redis.call('HDEL', task, 'holdfast:firsts', 'holdfast:kept')
end
local first = redis.call('ZRANGE', notes(at(0) or ''), 0, 0)[1]
if first then redis.call('ZADD', KEYS[3], 'XX', 'LT', ARGV[6], first) end
if #next == 0 and (waits or share) then return -1 end
return #next
