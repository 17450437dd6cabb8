-- Says whether it is the turn of a task that a worker has: no task of its key that has a place in front of it may still run. A task
-- that has no place gets the last one.
-- KEYS, ARGV 1 to 3 as in order.lua; 4 for how long the order is kept (ms), 5 '1' for the first look of a run
--
-- The reply is 0 if it is its turn; or else says of the first task: 1 its time will come, 2 a worker has it, 3 the same, and this
-- task is the next, 4 it can be brought forward, see next.lua; or -1 if the task is gone
--
-- holdfast:turn is 'behind' while the task is deferred, and then 'asked'.

local first, state, turn, woken = at(0)
if first == ARGV[1] then
  if turn == 'behind' then redis.call('HSET', KEYS[1], 'holdfast:turn', 'asked') end
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
enter(ARGV[4])
if ARGV[5] == '1' then redis.call('HSET', KEYS[1], 'holdfast:turn', 'asked') end
if not first then return 0 end
if state == ACTIVE then return at(1) == ARGV[1] and 3 or 2 end
if turn == 'behind' or state == PENDING and not woken then return 4 end
return 1
