//go:build unix

package main

import "syscall"

const canStop = true

// stop stops the process as a debugger, a full disk or the host of a virtual machine would: it does not notice.
func (p *process) stop() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

func (p *process) goOn() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
