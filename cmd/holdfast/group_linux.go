package main

import "syscall"

// adopt makes this process the parent of what its descendants leave behind, so that it can wait for the end of all of them.
func adopt() {
	const setChildSubreaper = 36
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0)
}

// mortal has the kernel kill a process when the thread that started it ends.
func mortal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
