-- Notifies the first in line, on several masters; behind line.lua, in place of grant.lua. No master can grant the lock
-- alone. Each notifies its first waiter that the lock is free here, and keeps the lock for that waiter for a moment, so
-- that the same waiter may get it on most masters. What the hash of the line has for each id is "expiry reserve counted
-- inbox":
--   expiry          from when on the entry counts as dead unless it was refreshed, by TIME in ms
--   reserve         how long the lock is kept for the waiter, in ms
--   counted, inbox  see line.lua
-- In addition it has, under `next`, "id until": for whom the lock is kept, and until when by TIME in ms. That is for
-- fairness, and nothing depends on it. An id begins with when it began to wait, so all masters have the same order.
--
-- The message to an inbox has four lines: id, 0, TIME in µs, and lock.

-- leave takes an id out of the line and reports whether it was there.
local function leave(id)
  redis.call('ZREM', KEYS[4], id)
  return redis.call('HDEL', KEYS[5], id) == 1
end

-- serve notifies the first in line that is alive and can be notified. It returns nothing, which tells forget.lua that
-- nobody has been granted anything.
local function serve(_, at)
  local now = at.now
  local i = 0
  while true do
    local id = redis.call('ZRANGE', KEYS[4], i, i)[1]
    if not id then return end
    local entry = redis.call('HGET', KEYS[5], id)
    local expiry, reserve, counted, inbox
    if entry then expiry, reserve, counted, inbox = string.match(entry, '^(%d+) (%d+) (%d) (.+)$') end
    if not expiry or now >= expiry * 1000 then
      leave(id)
    elseif not heard(inbox, counted) then
      i = i + 1
    else
      local till = string.format('%.0f', math.floor(now / 1000) + reserve)
      redis.call('HSET', KEYS[5], 'next', id .. ' ' .. till)
      if redis.call('PTTL', KEYS[5]) < tonumber(reserve) then redis.call('PEXPIRE', KEYS[5], reserve) end
      redis.pcall('PUBLISH', inbox, id .. string.format('\n0\n%.0f\n', now) .. KEYS[1])
      return
    end
  end
end

-- kept returns for how many ms the lock is kept for an id other than this, or nothing.
local function kept(id, now)
  local next = redis.call('HGET', KEYS[5], 'next')
  if not next then return end
  local who, till = string.match(next, '^(%S+) (%d+)$')
  if not who or who == id then return end
  local left = till - math.floor(now / 1000)
  if left > 0 then return left end
end
