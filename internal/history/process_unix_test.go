//go:build unix

package history

import (
	"os"
	"syscall"
)

func pauseProcess(p *os.Process) bool { return p.Signal(syscall.SIGSTOP) == nil }
func resumeProcess(p *os.Process)     { _ = p.Signal(syscall.SIGCONT) }
