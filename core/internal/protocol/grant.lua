-- Grants the lock on one server; behind turn.lua. In addition to the waiters, the hash of the line has under `mute` until
-- when this server counts as one that lets no script publish, by TIME in ms. Some managed services let none.
--
-- The message to an inbox has four lines: owner, token, TIME in µs, and lock.

-- mute reports whether this server counts as one of those. Then waiters that named an inbox are not notified. Their
-- next look makes them look on their own.
local function mute(now)
  local till = redis.call('HGET', KEYS[5], 'mute')
  return till and now < (tonumber(till) or 0) * 1000
end

-- draw takes the next token from a fence and reserves those behind it. It returns the token, the new fence, and by how
-- many ms the last token of the fence is ahead of the clock; nothing if the token space is used up.
local function draw(fence, block, now, several)
  local token = math.max(recall(fence) + 1, now)
  if token > 9007199254740992 - block then return end
  return token, enter(fence, token, block, now, several)
end

-- grant lets owner in, which may enter, with a lease from now on, and reserves block tokens. It returns the token, and a
-- function that takes this back; or nothing, and an error reply if there is one. `at` has in addition, under `idle`, that
-- nobody waits.
local function grant(at, owner, limit, tag, lease, life, block)
  local several, s, joins = limit > 1 or tag ~= '', at.s, at.value
  local value = at.value or several and '=' .. (tag ~= '' and owner or string.match(owner, '^[^:]*')) or owner
  if not s then abandon(at, several) end
  local before, fence, token, ahead = at.fence, at.fence, nil, 0
  if s and tag ~= '' then
    token = tonumber(s.token)
  else
    token, fence, ahead = draw(fence, block, at.now, limit > 1)
    if not token then return end
    fence = fence .. (several and ' s' or '') .. (at.idle and '' or ' w')
    life = life + ahead
    -- MGET reads a lock and a fence of another type as missing. So NX, and GET, which makes SET refuse such a fence.
    if not joins and not redis.call('SET', KEYS[1], value, 'NX', 'PX', ms(lease)) then
      return nil, redis.pcall('GET', KEYS[1])
    end
    local old = redis.pcall('SET', KEYS[2], fence, 'PX', ms(life), 'GET')
    if type(old) == 'table' then
      if not joins then redis.call('DEL', KEYS[1]) end
      return nil, old
    end
    at.fence, at.stored = fence, fence
  end
  at.value = value
  if several then
    local ends = math.floor(at.now / 1000) + lease
    s = s or {cap = limit, tag = tag, many = 0, next = ends, token = tag == '' and '0' or ms(token), n = 0}
    local cap, many = math.min(s.cap, limit), limit < s.cap and 1 or limit == s.cap and s.many + 1 or s.many
    at.s = {cap = cap, tag = s.tag, many = many, next = math.min(s.next, ends), token = s.token, n = s.n + 1}
    local entry = ms(ends) .. ' ' .. ms(limit) .. ' ' .. (tag == '' and ms(token) or '0')
    redis.call('HSET', hash, 'of', value, '@' .. owner, entry, 'cap', header(at.s))
    if joins then
      sustain(lease)
    else
      redis.call('PEXPIRE', hash, ms(math.max(lease + keep, life + keep / 2)))
    end
  end
  return token, function()
    if joins then
      redis.call('HDEL', hash, '@' .. owner)
      at.s = s
      return note(s)
    end
    redis.call('DEL', KEYS[1], hash)
    at.value, at.s, at.fence = nil, nil, before or released(fence)
  end
end

-- serve lets in the waiters that may enter, in their turn, up to the first that may not, and reports that one. It
-- passes over waiters that cannot be notified: a lost connection is made again, and a waiter that does not come back
-- expires. It stops at owner self, which is asking and needs no message. It returns how many got in, at most 64, as the
-- next script that looks goes on; whether a waiter in line may not enter; and, if one owner alone was granted the lock,
-- its lease in ms.
local function serve(self, at)
  local skip, n = {}, 0
  while n < 64 do
    if full(at) then return n, true end
    local m, owner, share = upcoming(skip)
    if not m or owner == self then return n end
    local w = waiter(redis.call('HGET', KEYS[5], owner))
    if not w or at.now >= w.expiry * 1000 or m ~= member(w.share, w.at, owner) then
      drop(m, share)
      if not w or m == member(w.share, w.at, owner) then redis.call('HDEL', KEYS[5], owner) end
    elseif not heard(w.inbox, w.counted) or w.inbox ~= '-' and mute(at.now) then
      skip[share] = (skip[share] or 0) + 1
    elseif not admits(at, tonumber(w.limit), w.tag) then
      return n, true
    else
      local token, undo = grant(at, owner, tonumber(w.limit), w.tag, tonumber(w.lease), tonumber(w.life), tonumber(w.block))
      if not token then return n end
      -- Only now that it is true. Line feeds separate the parts, because a label, which is in the owner id, may have
      -- spaces. It has no control characters.
      local sent = w.inbox ~= '-' and
        redis.pcall('PUBLISH', w.inbox, owner .. string.format('\n%.0f\n%.0f\n', token, at.now) .. KEYS[1])
      if type(sent) ~= 'table' or not sent.err then
        drop(m, share, tonumber(w.weight), not next(skip))
        redis.call('HDEL', KEYS[5], owner)
        n = n + 1
        if not at.s then return n, true, tonumber(w.lease) end
      else
        -- The waiter would have the lock and not know it. So it does not get the lock, and keeps its place.
        undo()
        redis.call('HSET', KEYS[5], 'mute', string.format('%.0f', math.floor(at.now / 1000) + 600000))
        skip[share] = (skip[share] or 0) + 1
      end
    end
  end
  return n
end
