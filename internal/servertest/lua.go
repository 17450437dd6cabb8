package servertest

import (
	_ "unsafe" // for go:linkname

	_ "github.com/alicebob/miniredis/v2" // has the interpreter
)

// Miniredis makes an interpreter for each script that runs, with room for 5,120 values and 256 calls within one another. That
// is a third of what the tests in bubbles allocate, and under the race detector a sixth of their processor time. Our scripts
// need less. The interpreter's variables are linked by name, so that no go.mod of ours requires it.

//go:linkname registrySize github.com/yuin/gopher-lua.RegistrySize
var registrySize int

//go:linkname callStackSize github.com/yuin/gopher-lua.CallStackSize
var callStackSize int

func init() { registrySize, callStackSize = 1024, 64 }
