-- Takes the lock if its owner may have it and nobody waits for it. Otherwise joins the line, or refreshes the owner's
-- place there. fast.lua is in front of this script and answers the common case.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner, 4 and 5 see line.lua
--       6 with a limit or a tag: see held.lua
-- ARGV: 1 owner
--       2 "lease life block", or to wait in line "lease life block entry first weight:share counted inbox":
--         lease           in ms
--         life            of the fence, in ms; longer than the lease
--         block           how many tokens to reserve
--         entry           how long the place in line is kept without another look, in ms
--         first           the first lease of a grant, in ms
--         weight, share   see turn.lua
--         counted, inbox  see line.lua
--       3 the limit, if not 1, or 1 and a tag
--       (2 is one string because Redis answers NOAUTH only to commands of up to ten arguments.)
-- Replies:
--   n > 0  held; n is the fencing token, or the first of a block
--   -1     this tenure was undone before
--   -2     the token space (2^53) is used up
--   {0, left, value, place, time, fence, deaf[, holders]}  somebody else holds the lock:
--          left     of its lease, in ms; -1 if the key never expires; of several leases, until the first may end
--          value    of the lock, see holding
--          place    in line: 1 is the first, 0 is outside; with shares an estimate
--          time     TIME, in µs
--          fence    the fence, or ''
--          deaf     why a waiter that named an inbox will not be notified: 1, this server knows no subscriber of the inbox;
--                   2, this server lets no script publish; else 0
--          holders  how many hold the lock, if several may
--   an error if the lock, its fence or its line is of another type

local limit, tag = string.match(ARGV[3] or '1', '^(%d+)(%S*)$')
limit = tonumber(limit)
local lease, life, block, line = string.match(ARGV[2], '^(%d+) (%d+) (%d+) ?(.*)$')
found = found or redis.call('MGET', KEYS[2], KEYS[3])
local fence = found[1]
if found[2] then return -1 end
local holder, left = holding()
if type(holder) == 'table' then return holder end

if holder == ARGV[1] then
  -- Asked before, and the answer was lost or is still on its way; or granted meanwhile. The token is the same, and the
  -- lease never gets shorter.
  if left < tonumber(lease) then redis.call('PEXPIRE', KEYS[1], lease) end
  local _, live = recall(fence)
  if live ~= '0' then return tonumber(live) end
end

local now = clock()
local at = {value = holder or nil, fence = fence or nil, stored = fence or nil, now = now}
inside(at, ARGV[1])
local token, over = again(at, ARGV[1], tonumber(lease))
if token then return token end
if over then recount(at) end

local mine, deaf = nil, 0

-- stand joins the line if that was asked for, once.
local function stand()
  if line ~= '' and not mine then
    local entry, first, whose, counted, inbox = string.match(line, '^(%d+) (%d+) (%d+:%S*) (%d) (.+)$')
    if inbox ~= '-' and mute(now) then deaf = 2 end
    if not heard(inbox, counted) then deaf = 1 end
    -- A waiter that cannot be notified looks on its own, and is not passed over.
    if deaf > 0 then inbox = '-' end
    local plan = table.concat({first, life, block, ms(limit) .. tag}, ' ')
    mine = join(ARGV[1], whose, now, entry, plan, counted .. ' ' .. inbox)
    if at.fence and not string.find(at.fence, 'w$') then at.fence = at.fence .. ' w' end
  end
end

-- refuse answers that somebody else holds the lock.
local function refuse(left)
  stand()
  settle(at)
  if at.s then left = math.max(1, at.s.next - math.floor(now / 1000)) end
  return {0, left, at.value or '', mine and place(mine) or 0, now, at.fence or '', deaf, at.s and at.s.n}
end

if at.value and at.value ~= ARGV[1] and not at.s then
  return refuse(left)
end

local waits = redis.call('EXISTS', KEYS[4]) == 1
at.idle = not waits
local led = at.s and tag ~= '' and tag == at.s.tag and redis.call('HGET', hash, '@' .. string.sub(at.value, 2))
if led and read(led) * 1000 > now then
  -- The first holder is in: past all waiters, see held.lua.
  leave(ARGV[1])
elseif waits and (not at.value or at.s) then
  stand() -- a share that arrives may be next
  local _, blocked, granted = serve(ARGV[1], at)
  if blocked or not admits(at, limit, tag) then return refuse(granted or 0) end
  leave(ARGV[1], true)
elseif at.s and not admits(at, limit, tag) then
  return refuse(0)
end

local err
token, err = grant(at, ARGV[1], limit, tag, tonumber(lease), tonumber(life), tonumber(block))
if not token then return err or -2 end
-- There may be room for those behind. The end of another library's lock notifies nobody, and this owner is just the
-- first to look after it.
if waits and at.s then serve('', at) end
settle(at)
return token
