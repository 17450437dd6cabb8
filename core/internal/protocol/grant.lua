-- On one server the first in line is granted the lock; behind line.lua. What is to be known of an owner who waits is
-- "expiry lease life block limit counted inbox":
--   expiry  the moment by TIME, in ms, from which the entry counts as dead unless it was refreshed
--   lease   that a grant begins with, in ms: short, so that a grant nobody notices costs little
--   life    of the fence after a grant, in ms
--   block   how many tokens a grant reserves
--   limit   how many may hold the lock together; of more than 1 a later release may make use, and is passed over by this one

-- and under `mute`, the moment until which this server counts as one that lets no script publish, by TIME in ms; some
-- managed services do not.

-- mute tells whether it does: then those who named an inbox are not told, and learn with their next look that they are to
-- look by themselves.
local function mute(now)
  local till = redis.call('HGET', KEYS[5], 'mute')
  return till and now < (tonumber(till) or 0) * 1000
end

-- draw takes the next token from a fence and reserves those behind it. It returns the token, the new fence, and by
-- how many ms its last token is ahead of the clock; nothing if the token space is used up.
local function draw(fence, block, now)
  local token = math.max(recall(fence) + 1, now)
  if token > 9007199254740992 - block then return end
  return token, enter(fence, token, block, now)
end

-- serve grants the lock, which must be free, to the first in line who is alive and can be told. The line keeps
-- those that cannot: a lost connection is made again, and who does not come back expires. It stops at owner
-- self, who asks and thus is at hand. It returns the new owner, its lease and the new fence, or nothing: then the
-- lock is free still.
local function serve(self, fence, now)
  local i = 0
  while true do
    local owner = redis.call('LINDEX', KEYS[4], i)
    if not owner or owner == self then return end
    local entry = redis.call('HGET', KEYS[5], owner)
    local expiry, lease, life, block, limit, counted, inbox
    if entry then
      expiry, lease, life, block, limit, counted, inbox =
        string.match(entry, '^(%d+) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) (%d) (.+)$')
    end
    if expiry and math.max(#expiry, #lease, #life, #block) > 15 then expiry = nil end -- none of ours
    if not expiry or now >= expiry * 1000 then
      if not leave(owner) then redis.call('LREM', KEYS[4], 1, owner) end
    elseif limit ~= '1' or not heard(inbox, counted) or inbox ~= '-' and mute(now) then
      i = i + 1
    else
      local token, text, ahead = draw(fence, tonumber(block), now)
      -- NX as in acquire.lua.
      if not token or not redis.call('SET', KEYS[1], owner, 'NX', 'PX', lease) then return end
      text = text .. ' w' -- for those behind, if any
      local old = redis.pcall('SET', KEYS[2], text, 'PX', string.format('%.0f', life + ahead), 'GET')
      if type(old) == 'table' and old.err then
        redis.call('DEL', KEYS[1])
        return
      end
      -- Only now, as it is true. Line feeds separate what a label, which may have spaces, is part of: it has no control
      -- characters.
      local sent = inbox ~= '-' and
        redis.pcall('PUBLISH', inbox, owner .. string.format('\n%.0f\n%.0f\n', token, now) .. KEYS[1])
      if type(sent) ~= 'table' or not sent.err then
        leave(owner)
        return owner, tonumber(lease), text
      end
      -- It would have the lock and not know. So nobody has got it, and it keeps its place.
      redis.call('DEL', KEYS[1])
      if old then
        redis.call('SET', KEYS[2], old, 'PX', string.format('%.0f', life + ahead))
      else
        redis.call('DEL', KEYS[2])
      end
      redis.call('HSET', KEYS[5], 'mute', string.format('%.0f', math.floor(now / 1000) + 600000))
      i = i + 1
    end
  end
end
