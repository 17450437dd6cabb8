-- Reports who holds a lock.
-- KEYS: 1 lock, 2 fence
-- Reply: {value or '', ms left (-1: never expires, -2: free), last token or 0}

local holder = redis.call('GET', KEYS[1])
local last = recall(redis.call('GET', KEYS[2]))
return {holder or '', redis.call('PTTL', KEYS[1]), tonumber(last)}
