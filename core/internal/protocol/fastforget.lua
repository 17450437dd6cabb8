-- In front of forget.lua, whose KEYS, ARGV and reply it has, for its common case: see free.lua; and no acquire is under
-- way. In any other case it only reads, and forget.lua behind it does the work. A Redis replica that lags behind refuses
-- the DEL here, or else a write of forget.lua.
--
-- On one of several masters, with ARGV[5], only the line shows that nobody waits: fences have no mark for that there.
if ARGV[4] == '0' and ARGV[2] ~= '0' then
  local found = redis.call('MGET', KEYS[1], KEYS[2])
  local fence = free(found[1], found[2], ARGV[1], ARGV[2])
  if fence and (not ARGV[5] or redis.call('EXISTS', KEYS[4]) == 0) then
    redis.call('DEL', KEYS[1])
    redis.call('SET', KEYS[2], fence, 'KEEPTTL')
    return 1
  end
end
