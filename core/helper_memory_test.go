package holdfast_test

import "runtime"

// heap is how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the first leaves what pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
