-- The wait line of a lock. It is shared by the scripts that join, serve or leave the line, and prepended to them behind
-- fence.lua. In those scripts
-- KEYS: 1 lock, 2 fence
--       4 a sorted set of the waiters, with equal scores, so that it is ordered by their names; see turn.lua and nudge.lua
--       5 a hash of what is known of each waiter by its id, see turn.lua and nudge.lua; for both
--         counted  1 if this server knows all subscribers, so that a waiter without one is gone: not in a Cluster
--         inbox    the channel for messages to the waiter; - if it looks on its own
-- An id waits while it is in both.

-- heard reports whether an owner can be notified of a grant, as far as this server knows. For an owner that looks on
-- its own the answer is yes. It asks before anything is published, because PUBLISH does not count all receivers: the
-- message also goes to the subscribers of Redis replicas.
local function heard(inbox, counted)
  local known = inbox ~= '-' and counted == '1' and redis.pcall('PUBSUB', 'NUMSUB', inbox)
  return not known or known[2] ~= 0
end
