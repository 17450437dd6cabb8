-- free returns what a fence is when owner has released its lock, in the common case of forget.lua: owner holds the lock
-- with this token, and nobody waits for it. In any other case it returns nothing. value and text are what is at the lock
-- and at the fence. In front of fastforget.lua and bundle.lua.
local function free(value, text, owner, token)
  local last, live, since = string.match(value == owner and text or '', '^(%d+) (%d+) (%d+)$')
  if live == token and live ~= '0' then return last .. ' 0 ' .. since end
end
