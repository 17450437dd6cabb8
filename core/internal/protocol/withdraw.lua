-- Takes back what tick.lua did for a claimant.
-- KEYS: 1 mark, 2 tombstone of this claimant
-- ARGV: 1 claimant
--       2 life of the tombstone, in ms; 0 to leave none
-- Replies:
--   1  the claimant had the mark
--   0  it had not

if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[2]) end
local mark = redis.call('GET', KEYS[1])
if not mark then return 0 end
local last, claimant, tick, who = string.match(mark, '^(%d+) (%S+) (%S+) (%S+)$')
if claimant ~= ARGV[1] then return 0 end
if tick == '0' then
  redis.call('DEL', KEYS[1])
elseif tick == '?' then
  redis.call('SET', KEYS[1], last .. ' - ? ?', 'KEEPTTL')
else
  redis.call('SET', KEYS[1], tick .. ' ' .. who .. ' ? ?', 'KEEPTTL')
end
return 1
