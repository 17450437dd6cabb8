//go:build !unix

package servertest

import "os/exec"

type account struct{}

func unprivileged(...string) (account, error) { return account{}, nil }
func (account) run(*exec.Cmd)                 {}
func (account) own(string) error              { return nil }
