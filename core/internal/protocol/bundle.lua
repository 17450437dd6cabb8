-- Several calls of forget.lua and acquire.lua in one, each of them in its common case. This does what fastforget.lua
-- and fast.lua do, with one look at all keys and one at the clock.
-- KEYS: of each forget its lock and fence, then of each acquire its lock, fence and tombstone
-- ARGV: 1 how many forgets there are; then of each forget its owner and token; then of each acquire its owner and plan
--       (ARGV 2 of acquire.lua)
-- Reply: an array of what each call would have got separately, in this order; 0 for a call in any other case. For that call
--       nothing was done, and it has to go separately.
--
-- A key may occur twice. An acquire after a forget still finds the lock held, NX refuses a second acquire, and a forget
-- that comes twice gets the reply 1 twice.
--
-- A proxy that spreads keys over several servers may send this to the server of the first key alone, which has nothing
-- under the keys of the others. The script does nothing to those keys. It frees only a lock that this server has as
-- held. It takes only a lock whose fence this server has: acquire.lua made that fence, or this script did where there
-- was one before.
local found, replies, freed = redis.call('MGET', unpack(KEYS)), {}, {}
local forgets, k, a = tonumber(ARGV[1]), 1, 2
for i = 1, forgets do
  replies[i] = 0
  if found[k] == ARGV[a] and found[k + 1] then
    local last, live, since = string.match(found[k + 1], '^(%d+) (%d+) (%d+)$')
    if live == ARGV[a + 1] and live ~= '0' then
      redis.call('SET', KEYS[k + 1], last .. ' 0 ' .. since, 'KEEPTTL')
      freed[#freed + 1] = KEYS[k]
      replies[i] = 1
    end
  end
  k, a = k + 2, a + 2
end
if freed[1] then redis.call('DEL', unpack(freed)) end

local plan, lease, life, block, token, stamp
for i = forgets + 1, (#ARGV - 1) / 2 do
  replies[i] = 0
  if ARGV[a + 1] ~= plan then
    plan = ARGV[a + 1]
    lease, life, block = string.match(plan, '^(%d+) (%d+) (%d+)')
  end
  if block == '1' and found[k + 1] and not found[k] and not found[k + 2] then
    local last, since = string.match(found[k + 1], '^(%d+) 0 (%d+)$')
    if last and #last < 17 and #since < 17 and since ~= '0' then
      if not token then
        local time = redis.call('TIME')
        token = time[1] * 1000000 + time[2]
        stamp = time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
      end
      if tonumber(last) < token and redis.call('SET', KEYS[k], ARGV[a], 'NX', 'PX', lease) then
        redis.call('SET', KEYS[k + 1], stamp .. ' ' .. stamp .. ' ' .. since, 'PX', life)
        replies[i] = token
      end
    end
  end
  k, a = k + 3, a + 2
end
return replies
