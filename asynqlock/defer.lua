-- Records in asynq's hash of a task that the task is deferred, and notes it under the lock that it found busy.
-- KEYS  1 the task, 2 the notes of its share, a sorted set: the task that was deferred first comes first; without it there is no
--       note, 3 the shares that have notes, a sorted set by turn, 4 the notes of tasks without a share
-- ARGV  1 the task's ID, 2 the time (Unix ms), 3 how many retries it has spent, 4 for how long notes are kept (ms), 5 '1' if a
--       task that was woken, or that none is noted in front of, is to wait: it is not deferred, and loses its note for now,
--       6 its share, or '', 7 '1' if the notes are an order, see order.lua: they have the task, and the first one has the turn, so that
--       the next one counts as the first of those that wait
--
-- Shares take turns: one whose task is woken goes behind all others, and so does one that had no note. If its only task was woken
-- in vain, because others had the key or took it, the share has its turn back. As long as no task has a share there are no shares;
-- else those without one are the share ''.
--
-- The reply is nil if the task is gone, or else
--   1     asynq's message
--   2, 3  when it was first deferred (Unix ms), and what its handler failed with before; nil if this is the first deferral
--         since it was enqueued or failed
--   4     0 if it is deferred, 1 if it is to wait, 2 if it is to wait and was woken
--   5     how many tasks are noted in front of it, if the other shares have as many
--   6     how often it has been the first, since it was last woken
--   7     1 if the notes have a new time to live, which is twice what is asked for so that this is rare
local msg, state, failure, woken = unpack(redis.call('HMGET', KEYS[1], MSG, 'holdfast', 'holdfast:failure', 'holdfast:woken'))
if not msg then return false end
local since, retried = string.match(state or '', '^(%d+) (%d+)$')
if retried ~= ARGV[3] then since, failure = false, false end
local ordered = ARGV[7] == '1'
local function ahead()
  if ordered then return math.max((redis.call('ZRANK', KEYS[2], ARGV[1]) or 0) - 1, 0) end
  local place, turn = redis.call('ZRANK', KEYS[2], ARGV[1]), redis.call('ZRANK', KEYS[3], ARGV[6])
  return place and (turn and turn + place * redis.call('ZCARD', KEYS[3]) or place)
end
if KEYS[2] and ARGV[5] == '1' then
  local place = ahead()
  if woken or place == 0 or not place and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0 then
    if ordered then
      redis.call('HSET', KEYS[1], 'holdfast:turn', 'asked')
      return {msg, since, failure, woken and 2 or 1, 0, 0, 0}
    end
    redis.call('ZREM', KEYS[2], ARGV[1])
    if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('ZREM', KEYS[3], ARGV[6]) end
    return {msg, since, failure, woken and 2 or 1, 0, 0, 0}
  end
end
redis.call('HDEL', KEYS[1], 'holdfast:woken')
if not since then
  redis.call('HSET', KEYS[1], 'holdfast', ARGV[2] .. ' ' .. ARGV[3])
  redis.call('HDEL', KEYS[1], 'holdfast:failure')
end
if not KEYS[2] then return {msg, since, failure, 0, 0, 0, 0} end
if ordered then
  redis.call('HSET', KEYS[1], 'holdfast:turn', 'behind')
else
  redis.call('ZADD', KEYS[2], since or ARGV[2], ARGV[1])
end
if not ordered and (ARGV[6] ~= '' or redis.call('EXISTS', KEYS[3]) == 1) then
  if redis.call('EXISTS', KEYS[3]) == 0 and redis.call('EXISTS', KEYS[4]) == 1 then redis.call('ZADD', KEYS[3], 0, '') end
  local at = woken and 0 or -1
  local turn = (redis.call('ZRANGE', KEYS[3], at, at, 'WITHSCORES')[2] or 0) + (woken and -1 or 1)
  redis.call('ZADD', KEYS[3], 'NX', turn, ARGV[6])
  if redis.call('PTTL', KEYS[3]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[3], 2 * ARGV[4]) end
end
local place, firsts, extended = ahead(), 0, 0
if place == 0 then firsts = redis.call('HINCRBY', KEYS[1], 'holdfast:firsts', 1) end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[4]) then
  redis.call('PEXPIRE', KEYS[2], 2 * ARGV[4])
  extended = 1
end
return {msg, since, failure, 0, place, firsts, extended}
