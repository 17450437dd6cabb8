-- The common case of acquire.lua, in front of it: the lock is free, nobody waits for it, and the fence is whole. KEYS,
-- ARGV and the reply are those of acquire.lua. In any other case this script only reads, and acquire.lua behind it does
-- the work. This takes a quarter of the instructions, because nothing is taken apart without need.
--
-- A fence that ends in digits says that nobody waits: see fence.lua. A fence with losses is left to acquire.lua.
local found, several
if not KEYS[6] then
  found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
  if found[2] and not found[1] and not found[3] then
    local last, since = string.match(found[2], '^(%d+) 0 (%d+)$')
    local lease, life, block = string.match(ARGV[2], '^(%d+) (%d+) (%d+)')
    if last and #last < 17 and #since < 17 and since ~= '0' and block == '1' then
      local time = redis.call('TIME')
      local token = time[1] * 1000000 + time[2]
      -- Compared as numbers: compared as texts, tokens would fall when the number of digits grows.
      if tonumber(last) < token and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', lease) then
        local text = time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
        redis.call('SET', KEYS[2], text .. ' ' .. text .. ' ' .. since, 'PX', life)
        return token
      end
    end
  end
end
