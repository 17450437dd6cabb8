//go:build unix

package servertest

import (
	"os"
	"syscall"
)

func pauseProcess(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resumeProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
func quitProcess(p *os.Process) error   { return p.Signal(syscall.SIGQUIT) }
