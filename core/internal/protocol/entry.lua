-- Re-entry across processes. This is in front of the scripts of a call with a re-entry id, which have this hash as
-- their last key. The hash has the owners that hold a lock together because they named the same re-entry id:
--   of      the value of the lock that the hash is about: the owner id of the first holder, which may be gone
--   id      their re-entry id
--   token   their fencing token
--   @owner  until when that owner holds the lock, by TIME in ms
-- It is a set of owners and no counter, which would count a command twice that is sent twice. An owner that dies
-- without leaving counts no longer than its own lease. The hash is written whenever the lock is prolonged, and lives as
-- long.

local entries = KEYS[#KEYS]

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- prolong lets owner hold the lock, and the lock last, for at least lease ms more. It returns how many ms owner has.
local function prolong(owner, lease)
  local now, field = clock(), '@' .. owner
  local till = math.max(tonumber(redis.call('HGET', entries, field) or 0), now + lease)
  redis.call('HSET', entries, field, string.format('%.0f', till))
  local left = redis.call('PTTL', KEYS[1])
  if left < till - now then
    left = till - now
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left))
  end
  redis.call('PEXPIRE', entries, string.format('%.0f', left))
  return till - now
end

-- enroll makes owner a holder of a lock that it has just got, and begins the hash if it is about an earlier lock.
local function enroll(holder, owner, id, token, lease)
  if redis.call('HGET', entries, 'of') ~= holder then
    redis.call('DEL', entries)
    redis.call('HSET', entries, 'of', holder, 'id', id, 'token', token)
  end
  prolong(owner, lease)
end

-- admit lets owner into a lock whose holders named the same id, and returns their token.
local function admit(holder, owner, id, lease)
  local e = redis.call('HMGET', entries, 'of', 'id', 'token')
  if e[1] ~= holder or e[2] ~= id then return end
  prolong(owner, lease)
  return tonumber(e[3])
end

-- remains returns for how many ms owner holds the lock, 0 or less if it does not; nothing if the hash is not about this
-- lock.
local function remains(holder, owner)
  local e = redis.call('HMGET', entries, 'of', '@' .. owner)
  if e[1] ~= holder then return end
  return e[2] and e[2] - clock() or 0
end

-- depart takes owner out, and every owner whose lease has expired. It returns whether owner was in, and whether others
-- still are; nothing if the hash is not about this lock. The lock lives on for the longest lease of the others. It may
-- have lived for that of owner, which does not need it any more.
local function depart(holder, owner)
  if redis.call('HGET', entries, 'of') ~= holder then return end
  local was = redis.call('HDEL', entries, '@' .. owner) == 1
  local all, now, till = redis.call('HGETALL', entries), clock(), 0
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == '@' then
      if tonumber(all[i + 1]) > now then
        till = math.max(till, tonumber(all[i + 1]))
      else
        redis.call('HDEL', entries, all[i])
      end
    end
  end
  if till == 0 then return was, false end
  if was and redis.call('PTTL', KEYS[1]) > till - now then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', till - now))
    redis.call('PEXPIRE', entries, string.format('%.0f', till - now))
  end
  return was, true
end
