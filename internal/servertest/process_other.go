//go:build !linux

package servertest

import "os/exec"

// dieWithParent has no counterpart here: children of a killed test binary stay.
func dieWithParent(*exec.Cmd) {}
