-- The common case of acquire.lua: the lock is free, nobody waits for it, and the fence is whole, or there is none because
-- the lock is new. It takes a quarter of the instructions, because nothing is taken apart without need. In front of
-- fast.lua and bundle.lua.

local now, stamp, known, lease, life, block -- TIME in µs, and as text; a plan that was taken apart

-- take takes a lock for owner, and returns the token. In any other case it changes nothing and returns nothing. text is
-- what is at fence. Whether the lock is free is for SET to find out: its value may be megabytes of somebody else.
--
-- A fence that ends in digits says that nobody waits: see fence.lua. A fence with losses is left to acquire.lua.
local function take(lock, fence, text, owner, plan)
  if plan ~= known then
    known = plan
    lease, life, block = string.match(plan, '^(%d+) (%d+) (%d+)')
  end
  local last, since = string.match(text or '0 0 1', '^(%d+) 0 (%d+)$')
  if block ~= '1' or not last or #last > 16 or #since > 16 or since == '0' then return end
  if not now then
    local time = redis.call('TIME')
    now, stamp = time[1] * 1000000 + time[2], time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
  end
  -- Compared as numbers: compared as texts, tokens would fall when the number of digits grows. A server that has no
  -- memory left refuses SET even if the lock is held.
  local got = tonumber(last) < now and redis.pcall('SET', lock, owner, 'NX', 'PX', lease)
  if not got or not got.ok then return end
  -- GET makes SET refuse a fence of another type, which MGET reads as missing. acquire.lua tells of that.
  local old = redis.pcall('SET', fence, stamp .. ' ' .. stamp .. ' ' .. (text and since or stamp), 'PX', life, 'GET')
  if type(old) ~= 'table' then return now end
  redis.call('DEL', lock)
end
