//go:build !unix

package servertest

import (
	"errors"
	"os"
)

var errNoSignals = errors.New("a process cannot be stopped and resumed on this system")

func pauseProcess(*os.Process) error  { return errNoSignals }
func resumeProcess(*os.Process) error { return errNoSignals }
func quitProcess(p *os.Process) error { return p.Kill() }
