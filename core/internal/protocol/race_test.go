//go:build race

package protocol

// rounds of a test in one goroutine, in which the race detector finds nothing and takes its time.
func rounds(n int) int { return n / 5 }
