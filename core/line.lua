-- The waiting line of a lock: shared by the scripts that join, serve or leave it, and prepended to them
-- behind fence.lua. In those
-- KEYS: 1 lock, 2 fence, 4 the owner ids that wait, a list, first come first
--       5 what is to be known of each, a hash: "expiry lease life block counted inbox"
--         expiry   the moment by TIME, in ms, from which the entry counts as dead unless it was refreshed
--         lease    that a grant begins with, in ms: short, so that a grant nobody notices costs little
--         life     of the fence after a grant, in ms
--         block    how many tokens a grant reserves
--         counted  1 where this server knows all subscribers, and without one the waiter is gone: outside of a Cluster
--         inbox    the channel to tell it through; - for one that looks by itself
-- An owner waits while it is in the hash. A place in the list without that is dead.

-- draw takes the next token from a fence and reserves those behind it. It returns the token, the new fence, and by
-- how many ms its last token is ahead of the clock; nothing if the token space is used up.
local function draw(fence, block, now)
  local last, live, since, lost = recall(fence)
  local token = math.max(last + 1, now)
  if token > 9007199254740992 - block then return end
  local reserved = token + block - 1
  if live ~= '0' then
    lost = lost .. ' ' .. live
    local _, n = string.gsub(lost, '%d+', '')
    if n > 8 then -- the oldest goes, and with it the claim to know about tokens that old
      local oldest, rest = string.match(lost, '^ (%d+)(.*)$')
      since, lost = string.format('%.0f', oldest + 1), rest
    end
  end
  local text = string.format('%.0f', token) -- past 10^14 Lua would write 1.7e+15
  if since == '0' then since = text end
  local ahead = math.max(0, math.ceil((reserved - now) / 1000))
  return token, string.format('%.0f', reserved) .. ' ' .. text .. ' ' .. since .. lost, ahead
end

-- leave takes an owner out of the line and tells whether it was there.
local function leave(owner)
  if redis.call('HDEL', KEYS[5], owner) == 0 then return false end
  redis.call('LREM', KEYS[4], 1, owner)
  return true
end

-- heard tells whether an owner can be told of a grant, as far as this server knows: of one that looks by itself it
-- is taken for granted. It asks before anything is published: the receivers that PUBLISH counts are not all, the
-- message also goes to the subscribers of replicas.
local function heard(inbox, counted)
  local known = inbox ~= '-' and counted == '1' and redis.pcall('PUBSUB', 'NUMSUB', inbox)
  return not known or known[2] ~= 0
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
    local expiry, lease, life, block, counted, inbox
    if entry then expiry, lease, life, block, counted, inbox = string.match(entry, '^(%d+) (%d+) (%d+) (%d+) (%d) (.+)$') end
    if not expiry or now >= expiry * 1000 then
      if not leave(owner) then redis.call('LREM', KEYS[4], 1, owner) end
    elseif not heard(inbox, counted) then
      i = i + 1
    else
      local token, text, ahead = draw(fence, tonumber(block), now)
      -- NX as in acquire.lua.
      if not token or not redis.call('SET', KEYS[1], owner, 'NX', 'PX', lease) then return end
      local old = redis.pcall('SET', KEYS[2], text, 'PX', string.format('%.0f', life + ahead), 'GET')
      if type(old) == 'table' and old.err then
        redis.call('DEL', KEYS[1])
        return
      end
      -- Only now, as it is true. Where it is refused, the owner finds out by looking.
      if inbox ~= '-' then
        redis.pcall('PUBLISH', inbox, owner .. ' ' .. string.format('%.0f %.0f', token, now) .. ' ' .. KEYS[1])
      end
      leave(owner)
      return owner, tonumber(lease), text
    end
  end
end
