-- Takes the lock on one of several masters, for a token that the client proposes. fastvote.lua is in front of this
-- script and answers the common case.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner, 4 and 5 see line.lua and nudge.lua
-- ARGV: 1 owner
--       2 "token lease life block quarantine behind fresh ahead asked"; to wait in line, followed by
--         " id entry reserve counted inbox":
--         token       the first of a block
--         lease       in ms
--         life        of the fence, in ms; longer than the lease
--         block       how many tokens to reserve
--         quarantine  how long after its start the server does not vote, in ms; 0: it votes at once
--         behind      a token is refused that is behind TIME by this or more, in µs
--         fresh       the same if the server knows of no token, in µs: as long as the client has been asking
--         ahead       a token is refused that is ahead of TIME by more than this, in µs
--         asked       1 to report the id of the server's run
--         id          of the waiter in line
--         entry       how long its place is kept, in ms
--         reserve, counted, inbox: see nudge.lua and line.lua
-- Replies: {code, TIME in µs, id of the run or '', n, ...}, with these codes and what follows n:
--   1               held, and n is recorded as the token: this one, or a higher one of the same owner
--   0, value, left  somebody else holds the lock with that value, see holding, for left ms, or -1 if the key never expires; or
--                   value is '', and the lock is kept for the waiter that was notified, for left ms; n is the last token
--                   issued
--   -1              this tenure was undone before
--   -2              the token space (2^53) is used up
--   -3              the token must be larger than n
--   -4              the token is too far ahead of TIME
--   -5              the server may have forgotten a lock, and does not vote for n ms more; n is -1 if it does not report its
--                   start
--   an error if the lock, its fence or its line is of another type
--
-- Why the bounds: a server that has forgotten its fence cannot know the last token. It does not vote for a quarantine,
-- which is longer than ahead + behind. Before it forgot, it took no token that was more than `ahead` above TIME. So all
-- of those are more than `behind` below TIME when it votes again. The same bounds keep a client whose clock is wrong
-- from using up the token space.
--
-- A server that was flushed has forgotten its fence and votes. It takes no token that its own clock had passed when the
-- client began to ask. By then its clock had passed all tokens that it took before, except those that were ahead of it:
-- see Masters.proposal.

local proposed, lease, life, block, quarantine, behind, fresh, ahead, asked, place =
  string.match(ARGV[2], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d) ?(.*)$')
found = found or redis.call('MGET', KEYS[2], KEYS[3])
local fence = found[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local up, run
if asked == '1' then up, run = started() end

local function reply(code, n, ...) return {code, now, run or '', tonumber(n), ...} end

local last, live, since, lost = recall(fence)
if found[2] then return reply(-1, last) end
local holder, left = holding()
if type(holder) == 'table' then return holder end

local id, entry, rest = string.match(place, '^(%S+) (%d+) (.+)$')

-- refuse answers that value has the lock, after joining the line if that was asked for.
local function refuse(value, left)
  if id then
    local expiry = string.format('%.0f', math.floor(now / 1000) + entry)
    redis.call('HSET', KEYS[5], id, expiry .. ' ' .. rest)
    redis.call('PEXPIRE', KEYS[5], entry)
    redis.call('ZADD', KEYS[4], 0, id)
    redis.call('PEXPIRE', KEYS[4], entry)
  end
  return reply(0, last, value, left)
end

if holder and holder ~= ARGV[1] then return refuse(holder, left) end

local token = tonumber(proposed)
if holder then
  -- Asked before: the answer was lost or is on its way, or this is the higher token that most masters agree on.
  if left < tonumber(lease) then redis.call('PEXPIRE', KEYS[1], lease) end
  if tonumber(live) >= token then return reply(1, live) end
  fence = last .. ' 0 ' .. since .. lost -- the lower one was its own
else
  if quarantine ~= '0' then
    -- One second less, because the times are floored.
    local young = up and quarantine - (up - 1) * 1000
    if not up or young > 0 then return reply(-5, young or -1) end
  end
  local reserved = kept(id, now)
  if reserved then return refuse('', reserved) end
end

local effective = math.max(tonumber(last), now - (last == '0' and fresh or behind))
if token <= effective then return reply(-3, string.format('%.0f', effective)) end
if token > now + ahead then return reply(-4, last) end
if token > 9007199254740992 - block then return reply(-2, last) end

-- As in acquire.lua: GET makes SET refuse a fence of another type.
if not holder and not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', lease) then
  return redis.pcall('GET', KEYS[1])
end
local text, beyond = enter(fence, token, tonumber(block), now)
local old = redis.pcall('SET', KEYS[2], text, 'PX', string.format('%.0f', life + beyond), 'GET')
if type(old) == 'table' and old.err then
  if not holder then redis.call('DEL', KEYS[1]) end
  return old
end
-- The waiter stays in line until it releases: its turn may have come to nothing on the other masters.
if id then redis.call('HDEL', KEYS[5], 'next') end
return reply(1, proposed)
