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

local token = tonumber(ARGV[2])
local fence = recall(KEYS[2])

if held then
  if not fence then return 1 end
  if fence[3] == 0 then fence[3] = token end
  fence[1] = math.max(fence[1], token)
  fence[2] = 0
  if fence[1] > 0 then record(KEYS[2], fence, clock(), tonumber(ARGV[3])) end
  return 1
end

if token == 0 then return 0 end
if not fence or token < fence[3] or token > fence[1] then return 3 end
if token == fence[2] then return 0 end
for i = 4, #fence do
  if fence[i] == token then return 0 end
end
return 2
