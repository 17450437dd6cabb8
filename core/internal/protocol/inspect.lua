-- Reports the holder of a lock, and how many wait for it.
-- KEYS: 1 lock, 2 fence, 3 line, 4 see held.lua
-- Reply: {value or '', ms left (-1: never expires, -2: free), token or 0, how many wait}; and where several may hold it, how many
-- do, and the least of their limits

local holder = redis.call('GET', KEYS[1])
local last, live = recall(redis.call('GET', KEYS[2]))
if live ~= '0' then last = live end
local n, least = nil, nil
if holder and string.sub(holder, 1, 1) == '=' then
  local all, time, of = redis.call('HGETALL', KEYS[4]), redis.call('TIME'), nil
  n, least = 0, 0
  for i = 1, #all, 2 do
    local ends, limit = string.match(all[i + 1], '^(%d+) (%d+) %d+$')
    if all[i] == 'of' then
      of = all[i + 1]
    elseif string.sub(all[i], 1, 1) == '@' and ends and ends * 1000 > time[1] * 1000000 + time[2] then
      n, least = n + 1, least == 0 and tonumber(limit) or math.min(least, limit)
    end
  end
  if of ~= holder then n, least = 0, 0 end
end
return {holder or '', redis.call('PTTL', KEYS[1]), tonumber(last), redis.call('LLEN', KEYS[3]), n, least}
