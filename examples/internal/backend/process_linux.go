package backend

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the child when this process dies, even if none of our clean-up runs.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
