-- In front of inspect.lua, to find a server that is too old. KEYS, ARGV and the reply are those of inspect.lua.
-- Replies in addition:
--   an error in words, if the server does not know GETEX
--
-- Without GETEX the fast scripts work, so that such a server serves a lock that nobody else wants. Renewals, and
-- releases that find a waiter, fail. Without options GETEX changes nothing. Any other refusal is of a server that knows
-- the command: a Redis replica refuses it as a write, an ACL may forbid it, and the key may be of another type. It is a
-- script of its own, so that Inspect asks for no more than it needs.

local probe = redis.pcall('GETEX', KEYS[1])
if type(probe) == 'table' and probe.err and string.find(string.lower(probe.err), 'unknown.* command') then
  return redis.error_reply('ERR this server does not know GETEX: holdfast needs Redis 6.2 or Valkey 7.2')
end
