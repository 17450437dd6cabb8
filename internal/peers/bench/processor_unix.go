//go:build unix

package main

import "syscall"

// processorTime is what this process has used of the processors, in s.
func processorTime() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for the own process
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
