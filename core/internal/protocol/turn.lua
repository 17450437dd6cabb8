-- Whose turn it is in the wait line on one server; behind line.lua and held.lua. Waiters of one share are first come, first
-- served; those without a share are the share ''. Between shares this is start-time fair queueing (Goyal, Vin, Cheng:
-- "Start-time Fair Queueing", SIGCOMM 1996), with two changes.
--
-- A share has a tag while one of it waits. The share with the least tag is next, and of equal ones the one whose first
-- waiter came first. A grant raises the tag by a step: unit, divided by the weight of the waiter. A share whose last waiter
-- leaves keeps its tag in mind while that is ahead of the virtual time v; a share that begins to wait gets that tag, or v.
--
-- First change: waiters have no tags of their own. If they got one when they join, a share whose calls give up would be
-- charged for what it never got, and starve.
--
-- Second change: v does not only follow the tags of those that are granted the lock. It gains step / (n + 1) with a grant
-- while n shares wait. Otherwise v stands still while ever new shares arrive, one for each user, say, and the second call of
-- an older share waits for all of them. In one round of n grants the tags rise by a step, and v by less. The module's
-- internal/model/schedule has the bounds that follow, and says why v needs a fraction.
--
-- A share that is passed over, because none of its waiters can be notified, moves up to v. Otherwise it would save up what
-- it missed, and then have the lock alone.
--
-- While all waiters are of the share '', nothing is kept of shares: the plain line, in which one look at the first member
-- says so. A line becomes plain again only when that forgets nothing: when the tag of '' is where the next share to arrive
-- would put it. Otherwise users that come again and again in small groups would each time find '' last.
--
-- KEYS: 4 has the members "share atowner": `at` is when the waiter came, by TIME in µs, in 16 digits, and later than all of
--         its share before it, even if the clock was set back. The share is query-escaped, so none of its bytes is below
--         %, and the space ends it. The member '', which comes first, says that there are shares.
--       5 has for each owner "expiry at lease life block limit weight:share counted inbox":
--         expiry          from when on the entry counts as dead unless it was refreshed, by TIME in ms
--         lease           the first lease of a grant, in ms: short, so that a grant that nobody notices costs little
--         life            of the fence after a grant, in ms
--         block           how many tokens a grant reserves
--         limit           how many may hold the lock together, with a tag or without: see held.lua
--         weight          of a grant to this waiter, for its share
--         counted, inbox  see line.lua
--         Under `v` it has the virtual time, and under =share "tag at", if there are shares.
-- `shares` names a sorted set, if there are shares: =at and the share with its tag, where `at` is that of its first waiter
-- when it got the tag; and -share, with 2^52 and the tag that is kept in mind.
-- All of this expires with the line. If a part was lost, the rest is dropped: waiters join again with their next look.
--
-- Tags stay below 2^51, which is 4 * 10^11 grants without an empty line; from then on the shares are first come, first
-- served.

local shares = string.sub(KEYS[2], 1, -6) .. 'share'
local unit, kept = 5040, 4503599627370496

local fair -- whether there are shares, once that is known

-- shared reports whether there are shares.
local function shared()
  if fair == nil then fair = redis.call('ZRANGE', KEYS[4], 0, 0)[1] == '' end
  return fair
end

-- lost is for a line with shares of which a part is missing.
local function lost()
  redis.call('DEL', KEYS[4], KEYS[5], shares)
  fair = false
end

local function member(share, at, owner) return share .. ' ' .. at .. owner end

-- come returns when a member came, its owner, and its share. Anybody can write members.
local function come(m)
  local share, rest = string.match(m, '^(%S*) (.*)$')
  if not share then return '0', m, '' end
  return string.sub(rest, 1, 16), string.sub(rest, 17), share
end

-- nth returns the member of a share that has i others of it before it.
local function nth(share, i)
  return redis.call('ZRANGE', KEYS[4], '[' .. share .. ' ', '(' .. share .. '!', 'BYLEX', 'LIMIT', i, 1)[1]
end

-- waiter takes what the hash has of a waiter apart; nil if that is none of ours.
local function waiter(entry)
  local w = {}
  w.expiry, w.at, w.lease, w.life, w.block, w.limit, w.tag, w.weight, w.share, w.counted, w.inbox = string.match(entry or '',
    '^(%d+) (%d+) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*) ([1-9]%d*)(%S*) ([1-9]%d*):(%S*) (%d) (.+)$')
  if w.expiry and math.max(#w.expiry, #w.lease, #w.life, #w.block, #w.limit) < 16 and #w.weight < 4 then return w end
end

-- upcoming returns the member whose turn it is, its owner, and its share. skip has for each share how many of its first
-- waiters are passed over.
local function upcoming(skip)
  if not shared() then
    local m = redis.call('ZRANGE', KEYS[4], skip[''] or 0, skip[''] or 0)[1]
    if not m then return end
    local _, owner, share = come(m)
    return m, owner, share
  end
  for r = 0, 1000000 do
    local s = redis.call('ZRANGE', shares, r, r)[1] or ''
    if string.sub(s, 1, 1) ~= '=' then
      if r == 0 then lost() end
      return
    end
    local share = string.sub(s, 18)
    local m = nth(share, skip[share] or 0)
    if m then
      local _, owner = come(m)
      return m, owner, share
    end
  end
end

-- known returns the tag of a share, when its first waiter came, and the virtual time; false for a tag that it has not.
local function known(share)
  local found = redis.call('HMGET', KEYS[5], '=' .. share, 'v')
  local tag, at = string.match(found[1] or '', '^(%d+) (%d+)$')
  return tonumber(tag or false), at, tonumber(found[2] or false)
end

-- move gives a share, whose first waiter came at `at`, a tag, and sets the virtual time.
local function move(share, at, tag, v)
  redis.call('ZADD', shares, ms(tag), '=' .. at .. share)
  redis.call('HSET', KEYS[5], '=' .. share, ms(tag) .. ' ' .. at, 'v', string.format('%.17g', v))
end

-- arise gives a share that begins to wait its tag, which is early or more.
local function arise(share, at, early)
  local tag, _, v = known(share)
  if tag then return end
  v = v or 0
  local before = redis.call('ZSCORE', shares, '-' .. share)
  move(share, at, math.max(early, math.floor(v), before and before - kept or 0), v)
  if before then redis.call('ZREM', shares, '-' .. share) end
end

-- charge is for a share of which a waiter has left, with the weight of a grant to it, or without one; first says that no
-- share was passed over for it. ZADD comes before ZREM: a set that becomes empty is gone, with its expiry.
local function charge(share, weight, first)
  local m = nth(share, 0)
  if not weight and m then return end
  local tag, at, v = known(share)
  if not tag or not v then return lost() end
  local was, n = '=' .. at .. share, redis.call('ZCOUNT', shares, 0, ms(kept - 1))
  if weight then
    local step = math.floor(unit / weight)
    v = math.min(math.max(tag, v + step / (n + 1)), kept / 2)
    tag = math.min(tag + step, kept / 2)
    local passed = not first and redis.call('ZRANK', shares, was) or 0
    for _, s in ipairs(passed > 0 and redis.call('ZRANGE', shares, 0, passed - 1) or {}) do
      move(string.sub(s, 18), string.sub(s, 2, 17), math.max(tonumber(redis.call('ZSCORE', shares, s)), math.floor(v)), v)
    end
  end
  if m then
    move(share, (come(m)), tag, v)
    if '=' .. come(m) .. share ~= was then redis.call('ZREM', shares, was) end
  else
    n = n - 1
    redis.call('HDEL', KEYS[5], '=' .. share)
    if weight then redis.call('HSET', KEYS[5], 'v', string.format('%.17g', v)) end
    if tag > v then redis.call('ZADD', shares, ms(kept + tag), '-' .. share) end
    redis.call('ZREM', shares, was)
  end
  if weight and redis.call('ZCARD', shares) > n then redis.call('ZREMRANGEBYSCORE', shares, ms(kept), ms(kept + math.floor(v))) end
  -- Nobody waits, or only the share '', see above.
  if n == 0 or n == 1 and redis.call('ZCARD', shares) == 1 and known('') == v + unit then
    redis.call('ZREM', KEYS[4], '')
    redis.call('HDEL', KEYS[5], 'v', '=')
    redis.call('DEL', shares)
    fair = false
  end
end

-- drop takes a member out of the line. With a weight, it was granted the lock.
local function drop(m, share, weight, first)
  local counts = shared()
  if redis.call('ZREM', KEYS[4], m) == 1 and counts then charge(share, weight, first) end
end

-- leave takes an owner out of the line and reports whether it was there. served: it was granted the lock.
local function leave(owner, served)
  local entry = redis.call('HGET', KEYS[5], owner)
  if not entry then return false end
  local w = waiter(entry)
  if w then drop(member(w.share, w.at, owner), w.share, served and tonumber(w.weight)) end
  redis.call('HDEL', KEYS[5], owner)
  return true
end

-- join puts an owner in line, or refreshes its place there for so many ms, and returns its member. whose is "weight:share",
-- and the rest goes into the entry as it is.
local function join(owner, whose, now, last, before, behind)
  local share = string.sub(whose, string.find(whose, ':', 1, true) + 1)
  local w = waiter(redis.call('HGET', KEYS[5], owner))
  local had, at = shared(), w and w.share == share and w.at
  if not at or not redis.call('ZRANK', KEYS[4], member(share, at, owner)) then
    local latest = redis.call('ZRANGE', KEYS[4], '(' .. share .. '!', '[' .. share .. ' ', 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
    at = string.format('%016.0f', math.max(now, latest and (tonumber((come(latest))) or 0) + 1 or 0))
    if share ~= '' and not had then
      local first = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
      redis.call('ZADD', KEYS[4], 0, '')
      fair = true
      -- One of '' has just been let in, so the new share is next.
      if first then arise('', (come(first)), unit) end
    end
    redis.call('ZADD', KEYS[4], 0, member(share, at, owner))
    if fair and not latest then arise(share, at, 0) end
  end
  local expiry = ms(math.floor(now / 1000) + last)
  redis.call('HSET', KEYS[5], owner, table.concat({expiry, at, before, whose, behind}, ' '))
  redis.call('PEXPIRE', KEYS[4], last)
  redis.call('PEXPIRE', KEYS[5], last)
  if fair then redis.call('PEXPIRE', shares, last) end
  return member(share, at, owner)
end

-- place returns the place of a member: 1 is the first. With shares, any other is an estimate.
local function place(m)
  if not fair then return (redis.call('ZRANK', KEYS[4], m) or 0) + 1 end
  local _, _, share = come(m)
  local row, _, since = redis.call('ZLEXCOUNT', KEYS[4], '[' .. share .. ' ', '(' .. m), known(share)
  local rank = since and redis.call('ZRANK', shares, '=' .. since .. share) or 0
  return row * redis.call('ZCOUNT', shares, 0, ms(kept - 1)) + rank + 1
end
