-- Ends a tenure: releases the lock, leaves the line, or undoes an acquire whose outcome is unknown. If that leaves the
-- lock free, the lock goes to the next in line. fastforget.lua is in front of this script and answers the common case.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner, 4 and 5 see line.lua
--       6 with a re-entry id: see entry.lua; with a limit, behind permit.lua: see held.lua
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

local holder = redis.pcall('GETEX', KEYS[1])
local wrong = false
if type(holder) == 'table' and holder.err then
  if not string.find(holder.err, 'WRONGTYPE', 1, true) then return holder end
  holder, wrong = false, true
end

local held, left = holder == ARGV[1], false
if KEYS[6] and not several and holder then
  -- A hash that has become of another type says nothing, and must not keep anybody from a release.
  local token = redis.pcall('HGET', KEYS[6], 'token')
  local ok, was, others = pcall(depart, holder, ARGV[1])
  if ok and was ~= nil then
    held = was and not others
    if held then
      redis.call('DEL', KEYS[6])
    elseif was then
      left = 1 -- the others go on
    elseif token == ARGV[2] then
      left = 2
    end
  end
end
if held then redis.call('DEL', KEYS[1]) end

local at, had, was = {value = not held and holder or nil}, nil, nil
if not ARGV[5] and (several or holder and string.sub(holder, 1, 1) == '=') then
  local time = redis.call('TIME')
  at.now, at.fence = time[1] * 1000000 + time[2], redis.pcall('GET', KEYS[2])
  if type(at.fence) ~= 'string' then at.fence = nil end
  at.stored = at.fence
  inside(at, ARGV[1])
  had, was = part(at, ARGV[1])
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

if left then return left end

local token, fence, unknown = ARGV[2], nil, false
if at.now then
  fence = at.fence or false
  -- The hash knows what else happened to tenures with a limit. A server that lost the hash does not know.
  unknown = several and not had and not was and marked(fence) and redis.call('EXISTS', hash) == 0
  if at.s or not at.value and not wrong then pcall(serve, '', at) end
  settle(at)
  if had then return (token == had or token == '0') and 1 or 0 end
  if was then return 0 end
end

if not at.now then fence = redis.pcall('GET', KEYS[2]) end
if type(fence) == 'table' then return held and 1 or 3 end -- another type: not ours to overwrite
local last, live, since, lost = recall(fence)

local after, life = fence, false -- the fence when this tenure is over; false: it lives as long as it did
if held then
  if live == token and live ~= '0' then
    -- The usual case. The fence has the life that the acquire gave it, a minute more than a lease. What is left of that
    -- is enough, except for a hold that ends in the very seconds in which the fence expires.
    after = last .. ' 0 ' .. since .. lost
  else
    if tonumber(token) > tonumber(last) then last = token end
    if since == '0' then since = token end
    after = false
    if last ~= '0' then
      local time = redis.call('TIME')
      local ahead = math.max(0, math.ceil((last - time[1] * 1000000 - time[2]) / 1000))
      after, life = last .. ' 0 ' .. since .. lost, string.format('%.0f', ARGV[3] + ahead)
    end
  end
end

local served, waits = false, false
if ARGV[5] ~= '-' and not at.now and (held or not holder and not wrong and not idle) then
  local ok, n = pcall(function()
    waits = redis.call('LINDEX', KEYS[4], 0)
    if not waits then return 0 end
    local time = redis.call('TIME')
    return serve('', {fence = after or nil, now = time[1] * 1000000 + time[2]})
  end)
  served = ok and n and n > 0
end

if held then
  if not served and after then
    if waits then after = after .. ' w' end
    if life then
      redis.call('SET', KEYS[2], after, 'PX', life)
    else
      redis.call('SET', KEYS[2], after, 'KEEPTTL')
    end
  end
  -- A late acquire of this tenure may have got the lock again, with another token, after the tenure lost the token that
  -- is named here.
  return string.find(lost .. ' ', ' ' .. token .. ' ', 1, true) and 0 or 1
end

if token == '0' then return 0 end
local n = tonumber(token)
if not fence or n < tonumber(since) or n > tonumber(last) then return 3 end
if token == live or string.find(lost .. ' ', ' ' .. token .. ' ', 1, true) then return 0 end
return unknown and 3 or 2
