//go:build unix

package shop

import "syscall"

// CanStop reports whether this system can stop a process and let it go on.
const CanStop = true

// Stop stops the process like a debugger or the host of a virtual machine: the process does not notice.
func (p *Process) Stop() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// GoOn lets a stopped process go on where it was.
func (p *Process) GoOn() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
