-- Reports who holds a lock, and how many wait for it.
-- KEYS: 1 lock, 2 fence, 3 line
-- Reply: {value or '', ms left (-1: never expires, -2: free), token or 0, how many wait}

local holder = redis.call('GET', KEYS[1])
local last, live = recall(redis.call('GET', KEYS[2]))
if live ~= '0' then last = live end
return {holder or '', redis.call('PTTL', KEYS[1]), tonumber(last), redis.call('LLEN', KEYS[3])}
