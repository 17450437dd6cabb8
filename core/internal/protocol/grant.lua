-- On one server the first in line is granted the lock; behind line.lua. What is to be known of a waiter is
-- "expiry lease life block limit counted inbox":
--   expiry  the moment by TIME, in ms, from which the entry counts as dead unless it was refreshed
--   lease   that a grant begins with, in ms: short, so that a grant nobody notices costs little
--   life    of the fence after a grant, in ms
--   block   how many tokens a grant reserves
--   limit   how many may hold the lock together, see held.lua

-- and under `mute`, the moment until which this server counts as one that lets no script publish, by TIME in ms; some
-- managed services do not.

-- mute tells whether it does: then those who named an inbox are not told, and learn with their next look that they are to
-- look by themselves.
local function mute(now)
  local till = redis.call('HGET', KEYS[5], 'mute')
  return till and now < (tonumber(till) or 0) * 1000
end


-- grant makes the lock, which is free, an owner's alone. It returns its token, or nothing, and what takes it back.
local function grant(at, owner, lease, life, block)
  abandon(at)
  local token, text, ahead = draw(at.fence, block, at.now)
  -- NX as in acquire.lua.
  if not token or not redis.call('SET', KEYS[1], owner, 'NX', 'PX', lease) then return end
  text = text .. ' w' -- for those behind, if any
  local old = redis.pcall('SET', KEYS[2], text, 'PX', string.format('%.0f', life + ahead), 'GET')
  if type(old) == 'table' and old.err then
    redis.call('DEL', KEYS[1])
    return
  end
  local before = at.fence
  at.value, at.fence, at.stored = owner, text, text
  return token, function()
    redis.call('DEL', KEYS[1])
    at.value, at.fence, at.stored = nil, before, old or nil
    if old then
      redis.call('SET', KEYS[2], old, 'PX', string.format('%.0f', life + ahead))
    else
      redis.call('DEL', KEYS[2])
    end
  end
end

-- serve lets in the waiters that may enter, in their order, until one may not: it stops there, and tells so. It passes over
-- those that cannot be told: a lost connection is made again, and a waiter that does not come back expires. It stops at owner
-- self, which asks and thus is at hand. It returns how many got in, at most 64: the next script that looks goes on; whether one in
-- line may not enter; and, if the lock was granted to one alone, its lease.
local function serve(self, at)
  local i, n = 0, 0
  while n < 64 do
    local owner = redis.call('LINDEX', KEYS[4], i)
    if not owner or owner == self then return n end
    local entry = redis.call('HGET', KEYS[5], owner)
    local expiry, lease, life, block, limit, counted, inbox
    if entry then
      expiry, lease, life, block, limit, counted, inbox =
        string.match(entry, '^(%d+) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) (%d) (.+)$')
    end
    if expiry and math.max(#expiry, #lease, #life, #block, #limit) > 15 then expiry = nil end -- none of ours
    if not expiry or at.now >= expiry * 1000 then
      if not leave(owner) then redis.call('LREM', KEYS[4], 1, owner) end
    elseif at.value and not admits(at, tonumber(limit)) then
      return n, true
    elseif not heard(inbox, counted) or inbox ~= '-' and mute(at.now) then
      i = i + 1
    else
      local token, undo
      if limit == '1' then
        token, undo = grant(at, owner, tonumber(lease), tonumber(life), tonumber(block))
      else
        token, undo = share(at, owner, tonumber(limit), tonumber(lease), tonumber(life), tonumber(block))
      end
      if not token then return n end
      -- Only now, as it is true. Line feeds separate what a label, which may have spaces, is part of: it has no control
      -- characters.
      local sent = inbox ~= '-' and
        redis.pcall('PUBLISH', inbox, owner .. string.format('\n%.0f\n%.0f\n', token, at.now) .. KEYS[1])
      if type(sent) ~= 'table' or not sent.err then
        leave(owner)
        n = n + 1
        if limit == '1' then return n, true, tonumber(lease) end
      else
        -- It would have the lock and not know. So it has not got it, and keeps its place.
        undo()
        redis.call('HSET', KEYS[5], 'mute', string.format('%.0f', math.floor(at.now / 1000) + 600000))
        i = i + 1
      end
    end
  end
  return n
end
