//go:build unix

package servertest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// An account is who a server runs as. Database servers refuse to run as root,
// so a test run by root hands them over to somebody else.
type account struct {
	uid, gid int // -1, -1 to stay who we are
}

// unprivileged returns the first of the named accounts that exists, or nobody,
// when we are root, and ourselves otherwise.
func unprivileged(names ...string) (account, error) {
	if os.Geteuid() != 0 {
		return account{-1, -1}, nil
	}
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			continue
		}
		return account{uid, gid}, nil
	}
	return account{}, fmt.Errorf("no unprivileged user to run as: tried %v and nobody", names)
}

// run makes cmd start under the account.
func (a account) run(cmd *exec.Cmd) {
	if a.uid < 0 {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// Without setgroups, which not every container allows its root.
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid), NoSetGroups: true}
}

// own gives dir and everything in it to the account, and lets the account
// reach it: testing makes its own parent directories private.
func (a account) own(dir string) error {
	if a.uid < 0 {
		return nil
	}
	top := filepath.Clean(os.TempDir())
	for up := filepath.Dir(dir); up != top && up != filepath.Dir(up); up = filepath.Dir(up) {
		info, err := os.Stat(up)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o011 == 0o011 {
			continue
		}
		if err := os.Chmod(up, info.Mode().Perm()|0o011); err != nil {
			return err
		}
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, a.uid, a.gid)
	})
}
