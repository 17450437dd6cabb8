-- Grants the lock to the first in line, on one server; behind line.lua. What the hash of the line has for each waiter
-- is "expiry lease life block limit counted inbox":
--   expiry          from when on the entry counts as dead unless it was refreshed, by TIME in ms
--   lease           the first lease of a grant, in ms: short, so that a grant that nobody notices costs little
--   life            of the fence after a grant, in ms
--   block           how many tokens a grant reserves
--   limit           how many may hold the lock together, see held.lua
--   counted, inbox  see line.lua
-- In addition it has, under `mute`, until when this server counts as one that lets no script publish, by TIME in ms.
-- Some managed services let none.
--
-- The message to an inbox has four lines: owner, token, TIME in µs, and lock.

-- mute reports whether this server counts as one of those. Then waiters that named an inbox are not notified. Their
-- next look makes them look on their own.
local function mute(now)
  local till = redis.call('HGET', KEYS[5], 'mute')
  return till and now < (tonumber(till) or 0) * 1000
end


-- grant gives the lock, which is free, to an owner alone. It returns the token, and a function that takes the grant
-- back; or nothing.
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

-- serve lets in the waiters that may enter, in their order, up to the first that may not, and reports that one. It
-- passes over waiters that cannot be notified: a lost connection is made again, and a waiter that does not come back
-- expires. It stops at owner self, which is asking and needs no message. It returns how many got in, at most 64, as the
-- next script that looks goes on; whether a waiter in line may not enter; and, if one owner alone was granted the lock,
-- its lease in ms.
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
      -- Only now that it is true. Line feeds separate the parts, because a label, which is in the owner id, may have
      -- spaces. It has no control characters.
      local sent = inbox ~= '-' and
        redis.pcall('PUBLISH', inbox, owner .. string.format('\n%.0f\n%.0f\n', token, at.now) .. KEYS[1])
      if type(sent) ~= 'table' or not sent.err then
        leave(owner)
        n = n + 1
        if limit == '1' then return n, true, tonumber(lease) end
      else
        -- The waiter would have the lock and not know it. So it does not get the lock, and keeps its place.
        undo()
        redis.call('HSET', KEYS[5], 'mute', string.format('%.0f', math.floor(at.now / 1000) + 600000))
        i = i + 1
      end
    end
  end
  return n
end
