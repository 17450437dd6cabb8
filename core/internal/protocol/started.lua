-- started returns for how many seconds the server has been up, and an id that is new at each start; nothing if the
-- server does not report them. The seconds are a difference of floored times, and can be almost 1 too high.
local function started()
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then return end
  return tonumber(string.match(info, 'uptime_in_seconds:(%d+)')), string.match(info, 'run_id:(%x+)')
end
