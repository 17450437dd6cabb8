-- Several holders of one lock; behind fence.lua and line.lua.
--
-- Each holder names a limit: how many may hold the lock while it does, itself included. An owner may enter if it and
-- all that are inside are then no more than the least of their limits. An owner without a limit may stand for any
-- number of readers of its process. So it is never inside together with one that names a limit.
--
-- While several may hold the lock, its value is = and the owner id that began with it, whose tenure may have ended, and
-- `hash` names a hash:
--   of      the value of the lock that the hash is about
--   cap     "cap many next": the least limit inside, how many named it, and a moment before which no lease inside ends
--   @owner  "ends limit token" of each owner inside
-- Moments are by TIME, in ms.
--
-- It is a hash of owners and no counter, which would count a command twice that is sent twice. An owner that has died
-- counts until its lease has expired. The hash outlives the lock, and the mark s of a fence says that there is one. It
-- names all that were inside, until the next owner alone, or the next owner that begins such a hash, has recorded all
-- of them as lost.
--
-- `at` is what a script knows of the lock:
--   value          of the lock; nil if it is free
--   s              what the hash says, if it is about this lock
--   entry          that of the script's owner
--   fence, stored  the fence, and the fence as it is stored
--   now            TIME, in µs

-- The scripts of an owner that names a limit have the hash as a key. The scripts of other owners derive its name and
-- may find the hash there. That costs them nothing. With one more key an acquire would have more than ten arguments,
-- see acquire.lua.
local hash = several and KEYS[#KEYS] or string.sub(KEYS[2], 1, -6) .. 'held'
local keep = 120000 -- how long the hash outlives the lock, in ms: longer than a fence, which may still know the tokens

local function ms(n) return string.format('%.0f', n) end

-- draw takes the next token from a fence and reserves those behind it. It returns the token, the new fence, and by how
-- many ms the last token of the fence is ahead of the clock; nothing if the token space is used up.
local function draw(fence, block, now, several)
  local token = math.max(recall(fence) + 1, now)
  if token > 9007199254740992 - block then return end
  return token, enter(fence, token, block, now, several)
end

-- inside reads the hash, and the entry of owner there, if the value of the lock says that there is a hash.
local function inside(at, owner)
  if not at.value or string.sub(at.value, 1, 1) ~= '=' then return end
  local h = redis.pcall('HMGET', hash, 'of', 'cap', '@' .. owner)
  if h.err or h[1] ~= at.value or not h[2] then return end
  local cap, many, next = string.match(h[2], '^(%d+) (%d+) (%d+)$')
  if not cap then return end
  at.entry = h[3]
  at.s = {cap = tonumber(cap), many = tonumber(many), next = tonumber(next), n = redis.call('HLEN', hash) - 2}
end

local function header(s) return ms(s.cap) .. ' ' .. ms(s.many) .. ' ' .. ms(s.next) end

local function note(s) redis.call('HSET', hash, 'cap', header(s)) end

-- read takes an entry apart. A damaged entry reads as one that ended long ago.
local function read(entry)
  local ends, limit, token = string.match(entry or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(ends or 0), tonumber(limit or 1), token or '0'
end

-- bury records tokens as lost, the smallest first, because a fence forgets the first ones first.
local function bury(fence, tokens)
  table.sort(tokens, function(a, b) return tonumber(a) < tonumber(b) end)
  for _, token in ipairs(tokens) do fence = lose(fence, token) end
  return fence
end

-- recount goes through the hash and counts anew. It takes out the dead, whose tokens the fence records as lost. If
-- nobody is left, the lock is free.
local function recount(at)
  local s, now, all, dead = {n = 0}, math.floor(at.now / 1000), redis.call('HGETALL', hash), {}
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == '@' then
      local ends, limit, token = read(all[i + 1])
      if ends <= now then
        redis.call('HDEL', hash, all[i])
        dead[#dead + 1] = token
      else
        s.n = s.n + 1
        if not s.cap or limit < s.cap then
          s.cap, s.many = limit, 1
        elseif limit == s.cap then
          s.many = s.many + 1
        end
        s.next = math.min(s.next or ends, ends)
      end
    end
  end
  at.fence = bury(at.fence, dead)
  if s.n > 0 then
    at.s = s
    note(s)
  else
    redis.call('DEL', KEYS[1], hash)
    at.value, at.s, at.fence = nil, nil, unmark(at.fence)
  end
end

-- roomy reports whether those inside leave room for an owner with that limit.
local function roomy(s, limit)
  local none = 1048576 -- no limit
  return s.n < math.min(s.cap, limit) and (s.cap == none) == (limit == none)
end

-- admits reports whether an owner with that limit may enter.
local function admits(at, limit)
  if not at.value then return true end
  if not at.s or roomy(at.s, limit) then return at.s ~= nil end
  if at.now < at.s.next * 1000 then return false end
  recount(at)
  return not at.value or roomy(at.s, limit)
end

-- abandon is for a hash that is no longer about a lock: all that were inside have lost it.
local function abandon(at)
  if not marked(at.fence) then return end
  local all, lost = redis.call('HGETALL', hash), {}
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == '@' then
      local _, _, token = read(all[i + 1])
      lost[#lost + 1] = token
    end
  end
  at.fence = bury(at.fence, lost)
  redis.call('DEL', hash)
  at.fence = unmark(at.fence)
end

-- settle stores the fence if it has changed since it was stored. So what a script finds dead on its way is recorded at
-- the end.
local function settle(at)
  if at.fence and at.fence ~= at.stored then redis.call('SET', KEYS[2], at.fence, 'KEEPTTL') end
  at.stored = at.fence
end

-- sustain makes the lock last for at least lease ms. The hash lasts longer than that, and longer than the fence, which
-- has life ms left.
local function sustain(lease, life)
  local left = redis.call('PTTL', KEYS[1])
  if left < lease then
    left = lease
    redis.call('PEXPIRE', KEYS[1], ms(left))
  end
  life = math.max(left + keep, life + keep / 2)
  if redis.call('PTTL', hash) < life then redis.call('PEXPIRE', hash, ms(life)) end
end

-- share lets owner in, with a lease from now on, and reserves block tokens. It returns the token, and a function that
-- takes this back; or nothing, and an error reply if there is one.
local function share(at, owner, limit, lease, life, block)
  if not at.value then abandon(at) end
  local token, fence, ahead = draw(at.fence, block, at.now, true)
  if not token then return end
  local began, s = not at.value, at.s
  if began and not redis.call('SET', KEYS[1], '=' .. owner, 'NX', 'PX', ms(lease)) then return nil, redis.pcall('GET', KEYS[1]) end
  fence, life = fence .. ' s w', life + ahead
  if not began then life = math.max(life, redis.call('PTTL', KEYS[2])) end
  local old = redis.pcall('SET', KEYS[2], fence, 'PX', ms(life), 'GET')
  if type(old) == 'table' and old.err then
    if began then redis.call('DEL', KEYS[1]) end
    return nil, old
  end
  local ends = math.floor(at.now / 1000) + lease
  at.fence, at.stored = fence, fence
  if began then
    at.value = '=' .. owner
    s = {cap = limit, many = 0, next = ends, n = 0}
  end
  at.s = {cap = math.min(s.cap, limit), many = s.many, next = math.min(s.next, ends), n = s.n + 1}
  if limit < s.cap then
    at.s.many = 1
  elseif limit == s.cap then
    at.s.many = s.many + 1
  end
  local entry = ms(ends) .. ' ' .. ms(limit) .. ' ' .. ms(token)
  if began then
    redis.call('DEL', hash) -- one that outlived its fence, and so the mark there
    redis.call('HSET', hash, 'of', at.value, '@' .. owner, entry, 'cap', header(at.s))
    redis.call('PEXPIRE', hash, ms(math.max(lease + keep, life + keep / 2)))
  else
    redis.call('HSET', hash, '@' .. owner, entry, 'cap', header(at.s))
    sustain(lease, life)
  end
  return token, function()
    redis.call('HDEL', hash, '@' .. owner)
    if began then
      redis.call('DEL', KEYS[1], hash)
      at.value, at.s = nil, nil
    else
      at.s = s
      note(s)
    end
  end
end

-- again lengthens the lease of an owner inside to lease ms, if it is shorter. It returns the token and how many ms are
-- left. For an owner that is not inside it returns nothing, and true if the owner was inside until its lease expired.
local function again(at, owner, lease)
  if not at.entry then return end
  local ends, limit, token = read(at.entry)
  local now = math.floor(at.now / 1000)
  if ends <= now then return nil, true end
  if ends < now + lease then
    ends = now + lease
    redis.call('HSET', hash, '@' .. owner, ms(ends) .. ' ' .. ms(limit) .. ' ' .. token)
  end
  if lease > 0 then sustain(ends - now, 0) end
  return tonumber(token), ends - now
end

-- part takes an owner out and returns its token. For an owner that is not inside it returns nothing, and the token if
-- the owner had been. A hash that has become of another type says nothing, and must not keep anybody from a release.
local function part(at, owner)
  local entry = at.entry
  if not at.s then entry = redis.pcall('HGET', hash, '@' .. owner) end
  if type(entry) ~= 'string' then return end
  local ends, limit, token = read(entry)
  if not at.s then return nil, token end
  if ends <= math.floor(at.now / 1000) then
    recount(at)
    return nil, token
  end
  local s = at.s
  s.n = s.n - 1
  if s.n == 0 then
    redis.call('DEL', KEYS[1], hash)
    at.value, at.s, at.fence = nil, nil, unmark(at.fence)
    return token
  end
  redis.call('HDEL', hash, '@' .. owner)
  if limit ~= s.cap then
    -- neither the least limit nor how many named it changes
  elseif s.many > 1 then
    s.many = s.many - 1
    note(s)
  else
    recount(at)
  end
  return token
end
