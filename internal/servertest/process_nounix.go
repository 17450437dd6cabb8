//go:build !unix

package servertest

import (
	"errors"
	"os"
	"os/exec"
)

var errNoSignals = errors.New("servertest: a process cannot be stopped and resumed on this system")

func pauseProcess(*os.Process) error  { return errNoSignals }
func resumeProcess(*os.Process) error { return errNoSignals }
func quitProcess(p *os.Process) error { return p.Kill() }

type account struct{}

func unprivileged(...string) (account, error) { return account{}, nil }
func (account) run(*exec.Cmd)                 {}
func (account) own(string) error              { return nil }
