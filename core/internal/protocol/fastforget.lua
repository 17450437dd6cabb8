-- The common case of forget.lua, in front of it: this owner holds the lock with this token, nobody waits for it, and no
-- acquire is under way. KEYS, ARGV and the reply are those of forget.lua. In any other case this script only reads, and
-- forget.lua behind it does the work. A Redis replica that lags behind refuses the DEL here, or else a write of
-- forget.lua.
--
-- On one of several masters, with ARGV[5], only the line shows that nobody waits: fences have no mark for that there.
local several
if ARGV[4] == '0' then
  local found = redis.call('MGET', KEYS[1], KEYS[2])
  if found[1] == ARGV[1] and found[2] then
    local last, live, since = string.match(found[2], '^(%d+) (%d+) (%d+)$')
    if live == ARGV[2] and live ~= '0' and (not ARGV[5] or redis.pcall('LINDEX', KEYS[4], 0) == false) then
      redis.call('DEL', KEYS[1])
      redis.call('SET', KEYS[2], last .. ' 0 ' .. since, 'KEEPTTL')
      return 1
    end
  end
end
