-- The waiting line of a lock: shared by the scripts that join, serve or leave it, and prepended to them
-- behind fence.lua. In those
-- KEYS: 1 lock, 2 fence, 4 the ids that wait, a list, first come first
--       5 what is to be known of each, a hash; see grant.lua and nudge.lua
-- One waits while it is in the hash. A place in the list without that is dead.
--   counted  1 where this server knows all subscribers, and without one the waiter is gone: outside of a Cluster
--   inbox    the channel to tell a waiter through; - for one that looks by itself

-- leave takes an owner out of the line and tells whether it was there.
local function leave(owner)
  if redis.call('HDEL', KEYS[5], owner) == 0 then return false end
  redis.call('LREM', KEYS[4], 1, owner)
  return true
end

-- heard tells whether an owner can be told of a grant, as far as this server knows: of one that looks by itself it
-- is taken for granted. It asks before anything is published: the receivers that PUBLISH counts are not all, the
-- message also goes to the subscribers of replicas.
local function heard(inbox, counted)
  local known = inbox ~= '-' and counted == '1' and redis.pcall('PUBSUB', 'NUMSUB', inbox)
  return not known or known[2] ~= 0
end
