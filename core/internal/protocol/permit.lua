-- In front of acquire.lua, forget.lua and renew.lua, for an owner that names a limit above 1: see held.lua.
local found, several = nil, true
