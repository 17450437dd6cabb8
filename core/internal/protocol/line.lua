-- The waiting line of a lock. It is shared by the scripts that join, serve or leave the line, and prepended to them
-- behind fence.lua. In those scripts
-- KEYS: 1 lock, 2 fence
--       4 a list of the ids that wait, first come first
--       5 a hash of what is known of each id, see grant.lua and nudge.lua; for both
--         counted  1 if this server knows all subscribers, so that a waiter without one is gone: not in a Cluster
--         inbox    the channel for messages to the waiter; - if it looks on its own
-- An id waits while it is in the hash. A place in the list is dead if its id is not in the hash.

-- leave takes an owner out of the line and reports whether it was there.
local function leave(owner)
  if redis.call('HDEL', KEYS[5], owner) == 0 then return false end
  redis.call('LREM', KEYS[4], 1, owner)
  return true
end

-- heard reports whether an owner can be notified of a grant, as far as this server knows. For an owner that looks on
-- its own the answer is yes. It asks before anything is published, because PUBLISH does not count all receivers: the
-- message also goes to the subscribers of Redis replicas.
local function heard(inbox, counted)
  local known = inbox ~= '-' and counted == '1' and redis.pcall('PUBSUB', 'NUMSUB', inbox)
  return not known or known[2] ~= 0
end
