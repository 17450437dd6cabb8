-- In front of acquire.lua and forget.lua for an owner that names a limit above 1: see held.lua.
local found, several = nil, true
