-- Ends a tenure: releases the lock, leaves the line, or undoes an acquire whose outcome is unknown. If that leaves the
-- lock free, the lock goes to the next in line. fastforget.lua is in front of this script and answers the common case.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner, 4 and 5 see line.lua
--       6 with a limit or a tag: see held.lua
-- ARGV: 1 owner
--       2 token, or 0 if the client never learned it
--       3 how long the fence lives on, in ms
--       4 life of the tombstone, in ms; 0 to leave none
--       5 only on one of several masters: the id of the waiter whose turn this was; - to notify nobody that the lock is free
-- Replies:
--   1  this owner held the lock, and no longer does
--   2  this tenure was released before
--   0  not held, or no longer with this token: the tenure ended without a release, or never began
--   3  not held, and nothing is recorded of this tenure
--   an error if Redis refuses to write, as a Redis replica does
--
-- GETEX without options reads like GET but counts as a write, so that a Redis replica refuses it. GET on a replica that
-- lags behind would report a loss that did not happen. The lock is deleted first: after one write, Redis does not
-- refuse the rest for lack of memory.

-- GETEX reads all of a value: see holding. An owner that knows its token has or had the lock, whose value is then short.
-- For one that only waited, a value that is too long for ours is cut off, and GETEX is for the tombstone.
local long = ARGV[2] == '0' and redis.pcall('GETRANGE', KEYS[1], 0, 88)
local foreign = type(long) == 'string' and #long > 88
local holder = redis.pcall('GETEX', KEYS[foreign and 3 or 1])
local wrong = false
if type(holder) == 'table' and holder.err then
  if not string.find(holder.err, 'WRONGTYPE', 1, true) then return holder end
  holder, wrong = false, true
end
if foreign then holder, wrong = long, false end

local held = holder == ARGV[1]
if held then redis.call('DEL', KEYS[1]) end
local fence = redis.pcall('GET', KEYS[2])
local odd = type(fence) == 'table' -- not ours to overwrite
if odd then fence = false end
local at = {value = not held and holder or nil, fence = fence or nil, stored = fence or nil}

-- The hash knows what else happened to its holders. A server that lost the hash does not know.
local had, was, unknown
if not held and not ARGV[5] and (not fence or marked(fence) or holder and string.sub(holder, 1, 1) == '=') then
  at.now = clock()
  inside(at, ARGV[1])
  had, was = part(at, ARGV[1])
  unknown = not had and not was and marked(fence) and redis.call('EXISTS', hash) == 0
end

if ARGV[4] ~= '0' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[4]) end
-- An owner that was granted the lock is no longer in line. A line of another type must not keep anybody from a release.
local idle = false
if not held and not had then
  local ok, was = pcall(leave, ARGV[1])
  -- A waiter of several masters that is no longer in line changes nothing. If the next one were notified again, each of
  -- many messages to the dead would be answered with one more, for as long as there are any.
  idle = ok and not was and string.sub(ARGV[1], 1, 1) == '~'
end
if ARGV[5] then pcall(leave, ARGV[5]) end

local token, last, live, since, lost = ARGV[2], recall(fence)
local life = false -- of the fence when this tenure is over; false: it lives as long as it did
if held and live == token and live ~= '0' then
  -- The usual case. The fence has the life that the acquire gave it, a minute more than a lease. What is left of that is
  -- enough, except for a hold that ends in the very seconds in which the fence expires.
  at.fence = last .. ' 0 ' .. since .. lost
elseif held then
  if tonumber(token) > tonumber(last) then last = token end
  if since == '0' then since = token end
  life = string.format('%.0f', ARGV[3] + math.max(0, math.ceil((last - clock()) / 1000)))
  at.fence = last ~= '0' and last .. ' 0 ' .. since .. lost or nil
end

local waits = false
if ARGV[5] ~= '-' and (held or at.s or not at.value and not wrong and not idle) then
  pcall(function()
    waits = redis.call('EXISTS', KEYS[4]) == 1
    if not waits then return end
    at.now = at.now or clock()
    serve('', at)
  end)
end
if at.fence and at.fence ~= at.stored and not odd then
  if held and waits then at.fence = at.fence .. ' w' end
  if life then
    redis.call('SET', KEYS[2], at.fence, 'PX', life)
  else
    redis.call('SET', KEYS[2], at.fence, 'KEEPTTL')
  end
end

if had then return (token == had or token == '0') and 1 or 0 end
if was then return 0 end
local lapsed = string.find(lost .. ' ', ' ' .. token .. ' ', 1, true)
-- A late acquire of this tenure may have got the lock again, with another token, after the tenure lost the token that
-- is named here.
if held then return lapsed and 0 or 1 end
if token == '0' then return 0 end
if at.s and at.s.token == token then return 2 end
local n = tonumber(token)
if not fence or n < tonumber(since) or n > tonumber(last) then return 3 end
if token == live or lapsed then return 0 end
return unknown and 3 or 2
