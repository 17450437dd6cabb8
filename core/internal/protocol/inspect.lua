-- Reports the holder of a lock, and how many wait for it.
-- KEYS: 1 lock, 2 fence, 3 line, 4 see held.lua
-- ARGV: none
-- Reply: {value, left, token, waiting, shares[, holders, limit]}
--   value    of the lock, see holding; or ''
--   left     of the lease, in ms; -1 never expires, -2 free; of several leases, until the first of them ends
--   token    of the holder if it is alone, or else the last one issued; 0 if none is known
--   waiting  how many wait
--   shares   how many shares they have, if they have any: see turn.lua
--   holders  how many hold the lock, if several may
--   limit    the least of their limits, if several may
--
-- The key of several holders stays for the longest lease that there was. If no lease is left in the hash the lock is
-- free, because the next look of an owner makes it so.

local holder, left = holding()
if type(holder) == 'table' then return holder end
local last, live = recall(redis.call('GET', KEYS[2]))
if live ~= '0' then last = live end
local n, least = nil, nil
if holder and string.sub(holder, 1, 1) == '=' then
  local all, now, first, of = redis.call('HGETALL', KEYS[4]), math.floor(clock() / 1000), math.huge, nil
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
local waiting, shares = redis.call('ZCARD', KEYS[3]), 0
if redis.call('ZRANK', KEYS[3], '') then
  waiting, shares = waiting - 1, redis.call('ZCOUNT', string.sub(KEYS[2], 1, -6) .. 'share', 0, '(4503599627370496')
end
return {holder or '', left, tonumber(last), waiting, shares, n, least}
