-- Shared by the scripts that read a fence, and prepended to each of them.
--
-- The fence of a lock is one string of decimal numbers and up to two marks:
--   last live since lost... s w
--   last   the largest token ever issued
--   live   the token of the latest tenure while nobody has released it, else 0
--   since  every token from here to last is accounted for
--   lost   tokens in that range whose tenure ended without a release, oldest first, at most 8
--   s      only if several may have held the lock since an owner had it alone: there is a hash, see held.lua. The tokens of
--          holders with limits are never live here
--   w      only if somebody may wait in line. An acquire that joins the line marks the fence, if there is one, and a script
--          that writes a new fence looks at the line. So without w nobody waits: fast.lua and fastforget.lua need not look
-- A tenure is recorded as lost when the next one begins and finds it unreleased. Losses are rare. So a few numbers tell
-- "released" from "lost" for every token since `since`, however many tenures there were. A list of the released ones
-- would have to be as long as the traffic between two resends.
--
-- A fence may be forgotten only once TIME alone gives larger tokens. So it lives longer by as much as its last token is
-- ahead of the clock.

-- holding returns the value of the lock, or false if it is free, and how many ms are left of its lease, as PTTL does. Of a
-- value it reads no more than 88 bytes, because anybody can set a key, to megabytes. The longest owner id has 87, 64 of them
-- a label; a label that is cut off is longer, and so is none. A lock of another type is an error reply.
local function holding()
  local left = redis.call('PTTL', KEYS[1])
  return left > -2 and redis.pcall('GETRANGE', KEYS[1], 0, 87), left
end

-- clock returns TIME, in µs.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- recall takes a fence apart, into strings: most numbers are written back as they were. `lost` has a space in front of
-- each number. Without a fence, or with a damaged one, there is no history. (2^53 has 16 digits.)
local function recall(fence)
  if fence then
    if string.sub(fence, -2) == ' w' then fence = string.sub(fence, 1, -3) end
    if string.sub(fence, -2) == ' s' then fence = string.sub(fence, 1, -3) end
    local last, live, since, lost = string.match(fence, '^(%d+) (%d+) (%d+)([ %d]*)$')
    if last and #last < 17 and #live < 17 and #since < 17 and
      (lost == '' or not string.find(lost .. ' ', '  ', 1, true) and not string.find(lost, string.rep('%d', 17))) then
      return last, live, since, lost
    end
  end
  return '0', '0', '0', ''
end

-- record adds a token to those that were lost. If there are too many, the oldest is dropped, and with it the claim to
-- know about tokens that old.
local function record(since, lost, token)
  lost = lost .. ' ' .. token
  local _, n = string.gsub(lost, '%d+', '')
  if n > 8 then
    local oldest, rest = string.match(lost, '^ (%d+)(.*)$')
    since, lost = string.format('%.0f', math.max(since, oldest + 1)), rest
  end
  return since, lost
end

-- enter records in a fence that a tenure has block tokens, from token on. If several hold the lock together, none of
-- these is live. It returns the new fence, and by how many ms its last token is ahead of the clock.
local function enter(fence, token, block, now, several)
  local last, live, since, lost = recall(fence)
  local reserved = math.max(token + block - 1, tonumber(last))
  if live ~= '0' then since, lost = record(since, lost, live) end
  local text = string.format('%.0f', token) -- past 10^14 Lua would write 1.7e+15
  if since == '0' then since = text end
  local ahead = math.max(0, math.ceil((reserved - now) / 1000))
  return string.format('%.0f', reserved) .. ' ' .. (several and '0' or text) .. ' ' .. since .. lost, ahead
end

-- marks returns what is behind the numbers, with a space in front of each letter.
local function marks(fence) return string.match(fence or '', '[ sw]*$') end

-- marked reports whether there may be a hash of several holders.
local function marked(fence) return string.find(marks(fence), 's', 1, true) ~= nil end

-- unmark takes the mark for that hash off.
local function unmark(fence) return fence and (string.gsub(fence, ' s', '', 1)) end

-- released returns a fence in which no tenure is live, with the marks.
local function released(fence)
  local last, _, since, lost = recall(fence)
  return fence and last .. ' 0 ' .. since .. lost .. marks(fence)
end

-- lose records that a tenure ended without a release, if it is not the one that the fence has as live. It keeps the
-- marks.
local function lose(fence, token)
  local last, live, since, lost = recall(fence)
  if last == '0' or token == '0' or tonumber(token) < tonumber(since) or tonumber(token) > tonumber(last) then return fence end
  since, lost = record(since, lost, token)
  return last .. ' ' .. live .. ' ' .. since .. lost .. marks(fence)
end
