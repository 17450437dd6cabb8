-- Begins the scripts of WithOrder.
-- KEYS  1 the task, 2 the order of its key: the places of its tasks, a sorted set
-- ARGV  1 the task's ID, 2 what the keys of tasks begin with, 3 the time (Unix ns)
--
-- A place counts only as long as asynq has the task and may still run it. So nobody has to give a place back: the first look
-- after a task was completed, archived or deleted, also by hand, removes its place. That a task's hash has the same place
-- tells it from an earlier task of the same ID.

-- at returns the task at an index of the order, its state, and its holdfast:turn and holdfast:woken. It removes the places that
-- it finds there and that count no longer.
local function at(index)
  while true do
    local id, place = unpack(redis.call('ZRANGE', KEYS[2], index, index, 'WITHSCORES'))
    if not id then return nil end
    local state, own, kept, till, turn, woken = unpack(redis.call('HMGET', ARGV[2] .. id,
      STATE, 'holdfast:place', 'holdfast:kept', 'holdfast:until', 'holdfast:turn', 'holdfast:woken'))
    local ended = not state or state == COMPLETED or state == ARCHIVED and not kept
    local late = till and state ~= ACTIVE and tonumber(till) * 1e9 <= tonumber(ARGV[3]) -- asynq fails it each time, and no Guard sees it
    if not ended and not late and tonumber(own) == tonumber(place) then return id, state, turn, woken end
    redis.call('ZREM', KEYS[2], id)
  end
end

-- enter gives the task the last place, unless it has one.
local function enter(life)
  local own, place = redis.call('HGET', KEYS[1], 'holdfast:place'), redis.call('ZSCORE', KEYS[2], ARGV[1])
  if own and place and tonumber(own) == tonumber(place) then return end
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or 0
  redis.call('HSET', KEYS[1], 'holdfast:place', last + 1)
  redis.call('ZADD', KEYS[2], last + 1, ARGV[1])
  redis.call('PEXPIRE', KEYS[2], life)
end
