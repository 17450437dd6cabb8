-- Around a script, in a build with the tag holdfast_trace: appends what the script did to the list holdfast:~trace, as one
-- event in JSON. The script itself is the function act. Its text is as without the tag, but its `redis` is a table that
-- listens in. Events are in the server's order, because the script that does something also tells it.
--
-- Each number of an event is a string, because cjson keeps 14 digits, and a token has 16. What is not there is left out.
-- The package internal/model/trace says what an event has.
local real, heard, told, stamp = redis, {}, {}, redis.call('TIME')
local list, count, hour = 'holdfast:~trace', 'holdfast:~trace:n', 3600000

local function text(n) return string.format('%.0f', n) end
local function micros(time) return time[1] * 1000000 + time[2] end
local function some(all) return all[1] and all or nil end

-- ends returns when a key expires, in ms: -1 for one that does not, and nothing for one that is not there.
local function ends(key)
  local at = real.call('PEXPIRETIME', key)
  return at > -2 and text(at) or nil
end

-- look returns what is kept for the lock, as far as the script knows the names of the keys.
local function look()
  local s = {lockEnd = ends(KEYS[1]) or '0'}
  local value = s.lockEnd ~= '0' and real.pcall('GETRANGE', KEYS[1], 0, 87)
  if value then s.lock = value.err and '(of another type)' or value end
  if not KEYS[2] then return s end
  local base = string.sub(KEYS[2], 1, -6)
  s.fence, s.fenceEnd = real.call('GET', KEYS[2]) or nil, ends(KEYS[2])
  s.line, s.lineEnd = some(real.call('ZRANGE', base .. 'line', 0, -1)), ends(base .. 'line')
  s.wait, s.waitEnd = some(real.call('HGETALL', base .. 'wait')), ends(base .. 'wait')
  s.share, s.shareEnd = some(real.call('ZRANGE', base .. 'share', 0, -1, 'WITHSCORES')), ends(base .. 'share')
  s.held, s.heldEnd = some(real.call('HGETALL', base .. 'held')), ends(base .. 'held')
  s.goneEnd = KEYS[5] and ends(KEYS[3])
  return s
end

-- pass calls Redis for the script, which sees one TIME.
local function pass(call, name, ...)
  if name == 'TIME' then return stamp end
  local a, b = ...
  local reply = call(name, ...)
  if name == 'PUBSUB' then heard[#heard + 1] = {b, reply[2] == 0 and '0' or '1'} end
  if name == 'PUBLISH' then told[#told + 1] = {a, b, type(reply) == 'table' and reply.err and '0' or '1'} end
  return reply
end

-- A number that begins at 1 again tells that the server has forgotten everything. PEXPIRE tells by what moment it goes.
local n = real.call('INCR', count)
real.call('PEXPIRE', count, hour)
local event = {n = text(n), call = '<name>', keys = KEYS, argv = ARGV, now = text(micros(stamp)),
  at = text(real.call('PEXPIRETIME', count) - hour), before = look()}

local function act()
local redis = {call = function(...) return pass(real.call, ...) end, pcall = function(...) return pass(real.pcall, ...) end}
<script>
end

local ok, reply = pcall(act)
event.after, event.till = look(), text(math.floor(micros(real.call('TIME')) / 1000))
event.heard, event.told, event.reply = some(heard), some(told), {}
local failed = not ok and (type(reply) == 'table' and reply.err or tostring(reply)) or type(reply) == 'table' and reply.err
for i, part in ipairs(failed and {} or type(reply) == 'table' and reply or {reply}) do
  event.reply[i] = type(part) == 'number' and text(part) or tostring(part)
end
event.reply, event.failed = some(event.reply), failed or nil
real.call('RPUSH', list, cjson.encode(event))
real.call('PEXPIRE', list, hour)
if not ok then error(reply, 0) end
return reply
