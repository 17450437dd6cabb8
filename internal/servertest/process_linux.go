package servertest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the child when this process dies, even
// by SIGKILL or a test timeout's panic, where no clean-up of ours runs.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
