-- The common case of vote.lua, in front of it: the lock is free and kept for nobody, and the fence is whole and knows
-- of no losses. KEYS, ARGV and the reply are those of vote.lua. In any other case this script changes nothing, and vote.lua
-- behind it does the work. As in fast.lua, SET finds out whether the lock is free.
local found = redis.call('MGET', KEYS[2], KEYS[3])
if found[1] and not found[2] and redis.pcall('HGET', KEYS[5], 'next') == false then
  local last, since = string.match(found[1], '^(%d+) 0 (%d+)$')
  local token, lease, life, block, quarantine, behind, ahead, asked =
    string.match(ARGV[2], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ (%d+) (%d)')
  if last and #since < 17 and last ~= '0' and since ~= '0' and block == '1' then
    local time = redis.call('TIME')
    local now, n = time[1] * 1000000 + time[2], tonumber(token)
    local up, run
    if asked == '1' then up, run = started() end
    local got = (quarantine == '0' or up and (up - 1) * 1000 >= tonumber(quarantine)) and n > tonumber(last) and
      n > now - behind and n <= now + ahead and n < 9007199254740992 and
      redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', lease)
    if got and got.ok then
      if n > now then life = string.format('%.0f', life + math.ceil((n - now) / 1000)) end
      redis.call('SET', KEYS[2], token .. ' ' .. token .. ' ' .. since, 'PX', life)
      return {1, now, run or '', n}
    end
  end
end
