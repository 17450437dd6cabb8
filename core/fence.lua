-- Shared by the scripts that read or write a fence; prepended to each of them.
--
-- The fence of a lock is one string of decimal numbers:
--   last live since lost...
--   last   the largest token ever issued
--   live   the token of the latest tenure while nobody has released it, else 0
--   since  every token from here to last is accounted for
--   lost   tokens in that range whose tenure ended without a release, oldest first
-- A tenure is recorded as lost when the next one begins and finds it unreleased. Losses are rare, so a
-- few numbers tell "released" from "lost" for every token since `since`, however many tenures came and
-- went: a list of the released ones would have to be as long as the traffic between two resends.

local MAX_LOST = 8

-- The server's clock in microseconds.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- recall returns {last, live, since, lost...}, all 0 for a lock without history; nil, err where the key
-- holds another type.
local function recall(key)
  local v = redis.pcall('GET', key)
  if type(v) == 'table' then return nil, v end
  local f = {}
  if v then
    for s in string.gmatch(v, '%d+') do f[#f + 1] = tonumber(s) end
  end
  if #f < 3 then return {0, 0, 0} end
  return f
end

-- record stores f for life ms, and longer where the tokens ran ahead of the clock: a fence may be
-- forgotten only once TIME alone gives larger tokens. Numbers past 10^14 need %.0f, Lua would write 1.7e+15.
local function record(key, f, now, life)
  local s = {}
  for i = 1, #f do s[i] = string.format('%.0f', f[i]) end
  local ahead = math.max(0, math.ceil((f[1] - now) / 1000))
  redis.call('SET', key, table.concat(s, ' '), 'PX', string.format('%.0f', life + ahead))
end

-- bury notes that the live tenure ended without a release. Where the list is full the oldest entry goes,
-- and with it the claim to know about tokens that old.
local function bury(f)
  if f[2] == 0 then return end
  f[#f + 1] = f[2]
  f[2] = 0
  if #f > 3 + MAX_LOST then
    f[3] = f[4] + 1
    table.remove(f, 4)
  end
end
