-- The common case of forget.lua, in front of it: the lock is held by this owner with this token, nobody waits for it and
-- no acquire is under way. Anything else falls through to what is behind, with nothing done but reading. A replica that
-- lags behind refuses the DEL, or else what is behind.
--
-- On one of several masters, with ARGV[5], only the line tells that nobody waits: fences have no mark there.
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
