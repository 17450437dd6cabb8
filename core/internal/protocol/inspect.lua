-- Reports the holder of a lock, and how many wait for it.
-- KEYS: 1 lock, 2 fence, 3 line, 4 see held.lua
-- Reply: {value or '', ms left (-1: never expires, -2: free), token or 0, how many wait}; and where several may hold it, how many
-- do, and the least of their limits; ms left is then until the first of their leases ends. The key stays for the longest that
-- there was: without a lease that lasts the lock is free, as the next look of an owner makes it.

local holder = redis.call('GET', KEYS[1])
local last, live = recall(redis.call('GET', KEYS[2]))
if live ~= '0' then last = live end
local left = redis.call('PTTL', KEYS[1])
local n, least = nil, nil
if holder and string.sub(holder, 1, 1) == '=' then
  local all, time, of = redis.call('HGETALL', KEYS[4]), redis.call('TIME'), nil
  local now, first = math.floor((time[1] * 1000000 + time[2]) / 1000), math.huge
  n, least = 0, 0
  for i = 1, #all, 2 do
    local ends, limit = string.match(all[i + 1], '^(%d+) (%d+) %d+$')
    if all[i] == 'of' then
      of = all[i + 1]
    elseif string.sub(all[i], 1, 1) == '@' and ends and tonumber(ends) > now then
      first = math.min(first, ends)
      n, least = n + 1, least == 0 and tonumber(limit) or math.min(least, limit)
    end
  end
  if of ~= holder then
    n, least = 0, 0
  elseif n == 0 then
    holder, left, n, least = nil, -2, nil, nil
  else
    left = first - now
  end
end
return {holder or '', left, tonumber(last), redis.call('LLEN', KEYS[3]), n, least}
