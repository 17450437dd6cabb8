//go:build unix

package main

import (
	"os"
	"syscall"
)

func pauseProcess(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// processorTime is what this process has used of the processors, in s.
func processorTime() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for the own process
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
