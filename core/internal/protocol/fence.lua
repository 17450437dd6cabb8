-- Shared by the scripts that read a fence; prepended to each of them.
--
-- The fence of a lock is one string of decimal numbers:
--   last live since lost... w
--   last   the largest token ever issued
--   live   the token of the latest tenure while nobody has released it, else 0
--   since  every token from here to last is accounted for
--   lost   tokens in that range whose tenure ended without a release, oldest first, at most 8
--   w      only if somebody may wait in line: an acquire that joins it marks the fence, if there is one, and a script that
--          writes a new one looks at the line. So without it nobody waits, and fast.lua and fastforget.lua need not look.
-- A tenure is recorded as lost when the next one begins and finds it unreleased. Losses are rare, so a
-- few numbers tell "released" from "lost" for every token since `since`, however many tenures came and
-- went: a list of the released ones would have to be as long as the traffic between two resends.
--
-- A fence may be forgotten only once TIME alone gives larger tokens: it lives longer by as much as its last
-- token is ahead of the clock.

-- recall takes a fence apart, into strings: most numbers are written back as they were. `lost` has a space
-- in front of each number. Without a fence, or with a damaged one, there is no history: 2^53 has 16 digits.
local function recall(fence)
  if fence then
    if string.sub(fence, -2) == ' w' then fence = string.sub(fence, 1, -3) end
    local last, live, since, lost = string.match(fence, '^(%d+) (%d+) (%d+)([ %d]*)$')
    if last and #last < 17 and #live < 17 and #since < 17 and
      (lost == '' or not string.find(lost .. ' ', '  ', 1, true) and not string.find(lost, string.rep('%d', 17))) then
      return last, live, since, lost
    end
  end
  return '0', '0', '0', ''
end

-- enter writes into a fence that a tenure has the tokens from token on, block of them. It returns the new fence, and
-- by how many ms its last token is ahead of the clock.
local function enter(fence, token, block, now)
  local last, live, since, lost = recall(fence)
  local reserved = math.max(token + block - 1, tonumber(last))
  if live ~= '0' then
    lost = lost .. ' ' .. live
    local _, n = string.gsub(lost, '%d+', '')
    if n > 8 then -- the oldest goes, and with it the claim to know about tokens that old
      local oldest, rest = string.match(lost, '^ (%d+)(.*)$')
      since, lost = string.format('%.0f', oldest + 1), rest
    end
  end
  local text = string.format('%.0f', token) -- past 10^14 Lua would write 1.7e+15
  if since == '0' then since = text end
  local ahead = math.max(0, math.ceil((reserved - now) / 1000))
  return string.format('%.0f', reserved) .. ' ' .. text .. ' ' .. since .. lost, ahead
end
