-- Several calls of forget.lua and acquire.lua in one, where each is a common case: of what fastforget.lua and fast.lua do,
-- and for a lock that is new, with one look at all keys and one at the clock.
--
-- KEYS  of each forget its lock and fence, then of each acquire its lock, fence, tombstone and line
-- ARGV  how many forgets; of each its owner and token; of each acquire its owner and plan
--
-- Returns what each would have returned by itself, in this order; 0 where its case is another, and nothing was done, so that
-- it has to go by itself. A key may occur twice: behind a forget an acquire finds the lock held, behind an acquire NX refuses
-- it, and a forget that comes twice is told twice that it freed the lock.
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
  if block == '1' and not found[k] and not found[k + 2] then
    local last, since
    if found[k + 1] then
      last, since = string.match(found[k + 1], '^(%d+) 0 (%d+)$')
      if since and (#last > 16 or #since > 16 or since == '0') then last = nil end
    elseif redis.pcall('LINDEX', KEYS[k + 3], 0) == false then -- no fence has the mark that nobody waits
      last = '0'
    end
    if last and not token then
      local time = redis.call('TIME')
      token = time[1] * 1000000 + time[2]
      stamp = time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
    end
    if last and tonumber(last) < token and redis.call('SET', KEYS[k], ARGV[a], 'NX', 'PX', lease) then
      replies[i] = token
      if since then
        redis.call('SET', KEYS[k + 1], stamp .. ' ' .. stamp .. ' ' .. since, 'PX', life)
      elseif not redis.call('SET', KEYS[k + 1], stamp .. ' ' .. stamp .. ' ' .. stamp, 'NX', 'PX', life) then
        redis.call('DEL', KEYS[k]) -- there is something else, and acquire.lua says so
        replies[i] = 0
      end
    end
  end
  k, a = k + 4, a + 2
end
return replies
