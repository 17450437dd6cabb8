-- Shared by the scripts that read a fence; prepended to each of them.
--
-- The fence of a lock is one string of decimal numbers:
--   last live since lost...
--   last   the largest token ever issued
--   live   the token of the latest tenure while nobody has released it, else 0
--   since  every token from here to last is accounted for
--   lost   tokens in that range whose tenure ended without a release, oldest first, at most 8
-- A tenure is recorded as lost when the next one begins and finds it unreleased. Losses are rare, so a
-- few numbers tell "released" from "lost" for every token since `since`, however many tenures came and
-- went: a list of the released ones would have to be as long as the traffic between two resends.
--
-- A fence may be forgotten only once TIME alone gives larger tokens: it lives longer by as much as its last
-- token is ahead of the clock.

-- recall takes a fence apart, into strings: most numbers are written back as they were. `lost` has a space
-- in front of each number. Without a fence, or with a damaged one, there is no history.
local function recall(fence)
  if fence then
    local last, live, since, lost = string.match(fence, '^(%d+) (%d+) (%d+)(.*)$')
    if last then return last, live, since, lost end
  end
  return '0', '0', '0', ''
end
