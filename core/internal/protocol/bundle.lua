-- Several calls of forget.lua and acquire.lua in one, each of them in its common case, see free.lua and take.lua, with one
-- look at all keys and one at the clock.
-- KEYS: of each forget its lock and fence, then of each acquire its fence and tombstone, then of each acquire its lock
-- ARGV: 1 how many forgets there are; then of each forget its owner and token; then of each acquire its owner and plan
--       (ARGV 2 of acquire.lua)
-- Reply: an array of what each call would have got separately, in this order; 0 for a call in any other case. For that call
--       nothing was done, and it has to go separately.
--
-- A key may occur twice. An acquire after a forget still finds a fence whose holder has not released, NX refuses a second
-- acquire, and a forget that comes twice gets the reply 1 twice.
--
-- A proxy that spreads keys over several servers may send this to the server of the first key alone, which has nothing
-- under the keys of the others. The script does nothing to those keys. It frees only a lock that this server has as
-- held. It takes only a lock whose fence this server has: acquire.lua made that fence, or this script did where there
-- was one before.
local forgets, k, a = tonumber(ARGV[1]), 1, 2
local locks = #KEYS + forgets - (#ARGV - 1) / 2 -- before those of the acquires, whose values nobody needs
local found, replies, freed = redis.call('MGET', unpack(KEYS, 1, locks)), {}, {}
for i = 1, forgets do
  local fence = free(found[k], found[k + 1], ARGV[a], ARGV[a + 1])
  if fence then
    redis.call('SET', KEYS[k + 1], fence, 'KEEPTTL')
    freed[#freed + 1] = KEYS[k]
  end
  replies[i] = fence and 1 or 0
  k, a = k + 2, a + 2
end
if freed[1] then redis.call('DEL', unpack(freed)) end

for i = forgets + 1, (#ARGV - 1) / 2 do
  local whole = found[k] and not found[k + 1]
  replies[i] = whole and take(KEYS[locks + i - forgets], KEYS[k], found[k], ARGV[a], ARGV[a + 1]) or 0
  k, a = k + 2, a + 2
end
return replies
