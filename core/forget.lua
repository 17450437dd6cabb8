-- Ends a tenure: release, and the undoing of an acquisition whose outcome is unknown.
-- KEYS: 1 lock, 2 fence, 3 tombstone of this owner
-- ARGV: 1 owner, 2 token or 0 where the client never learned it, 3 how long the fence lives on, in ms,
--       4 life of the tombstone in ms, 0 for none
-- Replies:
--   1   it was held and is free now
--   2   this tenure was released before
--   0   not held: it ended without a release
--   3   not held, and nothing is recorded of it
--
-- GETEX without options reads like GET but counts as a write, so that a replica refuses it: GET on a
-- replica that lags behind would report a loss that did not happen. The lock goes first: after a write
-- Redis does not refuse the rest for want of memory.

local holder = redis.pcall('GETEX', KEYS[1])
if type(holder) == 'table' and holder.err then
  if not string.find(holder.err, 'WRONGTYPE', 1, true) then return holder end
  holder = false
end

local held = holder == ARGV[1]
if held then redis.call('DEL', KEYS[1]) end
if ARGV[4] ~= '0' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[4]) end

local token = ARGV[2]
local fence = redis.pcall('GET', KEYS[2])
if type(fence) == 'table' then return held and 1 or 3 end -- another type: not ours to overwrite
local last, live, since, lost = recall(fence)

if held then
  if live == token and live ~= '0' then
    -- The rule. The fence has the life that the acquisition gave it, a minute more than a lease; what is
    -- left of that is enough, but for a hold that comes to its end in the very seconds in which it runs out.
    redis.call('SET', KEYS[2], last .. ' 0 ' .. since .. lost, 'KEEPTTL')
    return 1
  end
  if tonumber(token) > tonumber(last) then last = token end
  if since == '0' then since = token end
  if last ~= '0' then
    local time = redis.call('TIME')
    local ahead = math.max(0, math.ceil((last - time[1] * 1000000 - time[2]) / 1000))
    redis.call('SET', KEYS[2], last .. ' 0 ' .. since .. lost, 'PX', string.format('%.0f', ARGV[3] + ahead))
  end
  return 1
end

if token == '0' then return 0 end
local n = tonumber(token)
if not fence or n < tonumber(since) or n > tonumber(last) then return 3 end
if token == live or string.find(lost .. ' ', ' ' .. token .. ' ', 1, true) then return 0 end
return 2
