//go:build !linux

package backend

import "os/exec"

// dieWithParent does nothing: a server outlives a program that is killed.
func dieWithParent(*exec.Cmd) {}
