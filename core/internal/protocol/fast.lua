-- In front of acquire.lua, whose KEYS, ARGV and reply it has, for its common case: see take.lua. In any other case it
-- changes nothing, and acquire.lua behind it does the work.
local found = redis.call('MGET', KEYS[2], KEYS[3])
if not found[2] and (found[1] or redis.call('EXISTS', KEYS[4]) == 0) then
  local token = take(KEYS[1], KEYS[2], found[1], ARGV[1], ARGV[2])
  if token then return token end
end
