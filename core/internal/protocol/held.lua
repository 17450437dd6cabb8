-- Several holders of one lock; behind fence.lua.
--
-- Each holder names a limit: how many may hold the lock while it does, itself included. An owner may enter if it and
-- all that are inside are then no more than the least of their limits. An owner without a limit may stand for any
-- number of readers of its process. So it is never inside together with one that names a limit.
--
-- A tag behind a limit of 1 is a re-entry id: owners with the same tag enter beside each other, however many they are.
-- They have one token, which is live in the fence, and the fence knows nothing of a single one of them.
--
-- While somebody waits before it, a new owner with the tag may enter only as long as the first holder is in. After that
-- it stands in line. So a waiter waits for the first holder, as it would without a tag, and for those that are in when
-- that one leaves. Without this rule, owners that overlap keep a waiter out for as long as they go on.
--
-- The first holder is the job, and those that enter later are the services that it calls. If a service had to wait, the
-- waiter would wait for the job, the job for the service, and the service for the waiter. That is why a new owner does
-- not stand behind each waiter from the start: with a key that is in demand, each such call would hang. Nor is there a
-- time after which it does: a job that holds the lock for long would hang at its next call. The holders cannot pass the
-- first one's part on: owners that overlap would do that for ever. What remains is an owner that outlives the first
-- holder, and waits while it holds the lock for an owner that is still to come. That one has to bound its wait.
--
-- While several may hold the lock, its value is = and the owner id that began with it, whose tenure may have ended, and
-- `hash` names a hash:
--   of      the value of the lock that the hash is about
--   cap     "cap many next token": the least limit inside with the tag, how many named it, a moment before which no lease
--           inside ends, and the token that all have; 0 without a tag
--   @owner  "ends limit token" of each owner inside; the token is 0 with a tag
-- Moments are by TIME, in ms. Without a tag the value has no label, because it would be that of one among equals.
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

-- The scripts of owners that name a limit or a tag have the hash as a key too. Those of other owners may find it there,
-- which costs them nothing: with one more key, an acquire would have more than ten arguments, see acquire.lua.
local hash = string.sub(KEYS[2], 1, -6) .. 'held'
local keep = 120000 -- how long the hash outlives the lock, in ms: longer than a fence, which may still know the tokens

local function ms(n) return string.format('%.0f', n) end

-- inside reads the hash, and the entry of owner there, if the value of the lock says that there is a hash.
local function inside(at, owner)
  if not at.value or string.sub(at.value, 1, 1) ~= '=' then return end
  local h = redis.pcall('HMGET', hash, 'of', 'cap', '@' .. owner)
  if h.err or h[1] ~= at.value or not h[2] then return end
  local cap, tag, many, next, token = string.match(h[2], '^(%d+)(%S*) (%d+) (%d+) (%d+)$')
  if not cap then return end
  at.entry = h[3]
  local n = redis.call('HLEN', hash) - 2
  at.s = {cap = tonumber(cap), tag = tag, many = tonumber(many), next = tonumber(next), token = token, n = n}
end

local function header(s) return ms(s.cap) .. s.tag .. ' ' .. ms(s.many) .. ' ' .. ms(s.next) .. ' ' .. s.token end

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

-- recount goes through the hash and counts anew. It takes out the dead, whose tokens the fence records as lost. The lock
-- lives on for the longest lease that is left. If nobody is left, it is free.
local function recount(at)
  local now, all, dead, till = math.floor(at.now / 1000), redis.call('HGETALL', hash), {}, 0
  local s = {tag = at.s.tag, token = at.s.token, n = 0}
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
        till = math.max(till, ends)
      end
    end
  end
  at.fence = bury(at.fence, dead)
  if s.n > 0 then
    at.s = s
    note(s)
    redis.call('PEXPIRE', KEYS[1], ms(till - now))
  else
    redis.call('DEL', KEYS[1], hash)
    at.value, at.s, at.fence = nil, nil, unmark(at.fence)
  end
end

-- roomy reports whether those inside leave room for an owner with that limit and tag.
local function roomy(s, limit, tag)
  local none = 1048576 -- no limit
  return tag ~= '' and tag == s.tag or s.n < math.min(s.cap, limit) and (s.cap == none) == (limit == none)
end

-- admits reports whether an owner with that limit and tag may enter.
local function admits(at, limit, tag)
  if not at.value then return true end
  if not at.s or roomy(at.s, limit, tag) then return at.s ~= nil end
  if at.now < at.s.next * 1000 then return false end
  recount(at)
  return not at.value or roomy(at.s, limit, tag)
end

-- full reports whether nobody may enter, whatever the limit. Then there is no need to look at who waits.
local function full(at)
  if not at.s or at.s.tag ~= '' or at.s.n < at.s.cap then return false end
  if at.now >= at.s.next * 1000 then recount(at) end
  return at.s and at.s.n >= at.s.cap
end

-- abandon is for a hash that is no longer about a lock: all that were inside have lost it. It looks for one if the fence
-- says that there is one, or if an owner is to begin another, as it may have outlived its fence.
local function abandon(at, begins)
  if not begins and not marked(at.fence) then return end
  local all, lost = (begins and redis.call or redis.pcall)('HGETALL', hash), {} -- it may have become of another type
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == '@' then
      local _, _, token = read(all[i + 1])
      lost[#lost + 1] = token
    end
  end
  if all[1] then redis.call('DEL', hash) end
  at.fence = unmark(bury(at.fence, lost))
end

-- settle stores the fence if it has changed since it was stored. So what a script finds dead on its way is recorded at
-- the end.
local function settle(at)
  if at.fence and at.fence ~= at.stored then redis.call('SET', KEYS[2], at.fence, 'KEEPTTL') end
  at.stored = at.fence
end

-- sustain makes the lock last for at least lease ms, and what is known of it for as much longer as that takes.
local function sustain(lease)
  local left, life = redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2])
  if left < lease then
    left = lease
    redis.call('PEXPIRE', KEYS[1], ms(left))
  end
  if life >= 0 and life < left + keep / 2 then redis.call('PEXPIRE', KEYS[2], ms(left + keep / 2)) end
  life = math.max(left + keep, life + keep / 2)
  if redis.call('PTTL', hash) < life then redis.call('PEXPIRE', hash, ms(life)) end
end

-- again lengthens the lease of an owner inside to lease ms, if it is shorter. It returns the token and how many ms are
-- left. For an owner that is not inside it returns nothing, and true if the owner was inside until its lease expired.
local function again(at, owner, lease)
  if not at.entry then return end
  local ends, limit, token = read(at.entry)
  local now = math.floor(at.now / 1000)
  if ends <= now then return nil, true end
  if lease > 0 then -- even if that changes nothing: see renew.lua
    ends = math.max(ends, now + lease)
    redis.call('HSET', hash, '@' .. owner, ms(ends) .. ' ' .. ms(limit) .. ' ' .. token)
    sustain(ends - now)
  end
  return tonumber(token == '0' and at.s.token or token), ends - now
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
  redis.call('HDEL', hash, '@' .. owner)
  if s.tag ~= '' or limit == s.cap and s.many == 1 then
    recount(at) -- of owners with a tag, none leaves the rest of its lease behind
  elseif limit == s.cap then
    s.many = s.many - 1
    note(s)
  end
  if s.tag == '' then return token end
  if not at.value then at.fence = released(at.fence) end
  return s.token
end
