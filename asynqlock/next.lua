-- Has asynq run next the first tasks in the order of a key, if they are deferred. The reply is how many; or -1 if asynq is about to put
-- the first one back.
-- KEYS  1 the task that has just run, if it is done, 2 the order, 3 asynq's list of pending tasks, 4, 5 its sorted sets of tasks to
--       retry and archived ones, 6 what says that the queue is paused
-- ARGV  1 the ID of KEYS 1, or '', 2 what the keys of tasks begin with, 3 the time (Unix ns), 4 how many tasks to wake, 5 how many
--       entries of the list to search
--
-- A first task that has failed stays the first, and keeps the others waiting until asynq retries it. One that has come back by itself
-- stands at the left end of the list, see run.lua, and comes to the right end. One that no worker has had yet comes in its turn; but if
-- a task behind it has come before, it stands there too. One that a worker has needs nobody: it runs, or waits there to be the next.
-- No more than two are at workers: one that runs and one that waits. Others would stand in the lock's line in another order.

if redis.call('EXISTS', KEYS[6]) == 1 then return 0 end
local next, index, n = {}, 0, tonumber(ARGV[4])
while n > 0 and index < 4 do
  local id, state, turn, woken = at(index)
  if not id then break end
  if index == 0 and id ~= ARGV[1] then index = 1 end -- of three, the first is the one that has just run
  if id ~= ARGV[1] then
    local task, found = ARGV[2] .. id, 0
    if turn == 'behind' and state == ACTIVE then
      if #next == 0 then return -1 end
    elseif turn == 'behind' and state == RETRY then
      found = redis.call('ZREM', KEYS[4], id)
    elseif turn == 'behind' and state == ARCHIVED then -- see keep.lua
      found = redis.call('ZREM', KEYS[5], id)
    elseif state == PENDING and not woken and (turn or ARGV[1] == '') and #next == 0 and redis.call('LPOS', KEYS[3], id, 'MAXLEN', ARGV[5]) then
      found = redis.call('LREM', KEYS[3], 1, id)
    end
    if found == 1 then
      next[#next + 1] = id
      n = n - 1
    elseif state ~= ACTIVE or turn == 'behind' then
      break
    end
  end
  index = index + 1
end
for i = #next, 1, -1 do
  local task = ARGV[2] .. next[i]
  redis.call('RPUSH', KEYS[3], next[i])
  redis.call('HSET', task, STATE, PENDING, PENDING_SINCE, ARGV[3], 'holdfast:woken', 1, 'holdfast:turn', 'asked')
  redis.call('HDEL', task, 'holdfast:firsts', 'holdfast:kept')
end
return #next
