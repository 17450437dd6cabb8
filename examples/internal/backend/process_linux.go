package backend

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the child when this process dies, even where no clean-up of ours runs.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
