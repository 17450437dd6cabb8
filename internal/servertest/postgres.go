package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Postgres starts a throwaway PostgreSQL cluster that trusts everybody and
// never flushes to disk, ends it with the test, and returns its address as
// postgres://postgres@127.0.0.1:PORT/postgres?sslmode=disable.
// The test is skipped where PostgreSQL is not installed.
func Postgres(t testing.TB) string {
	t.Helper()
	initdb, server, err := postgresBinaries()
	require(t, postgresName, err)

	dir := t.TempDir()
	owner, err := unprivileged("postgres")
	if err == nil {
		err = owner.own(dir)
	}
	if err != nil {
		t.Fatalf("servertest: %s: %v", postgresName, err)
	}
	data := filepath.Join(dir, "data")
	err = prepare(owner, dir, initdb, "--pgdata", data, "--username", "postgres",
		"--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync")
	if err != nil {
		t.Fatalf("servertest: %s: %v", postgresName, err)
	}

	port := launch(t, postgresName, owner, dir, func(port int) *exec.Cmd {
		return exec.Command(server, "-D", data,
			"-c", "listen_addresses=127.0.0.1", "-c", "port="+strconv.Itoa(port),
			"-c", "unix_socket_directories=", // a test's directory is too long a name for a socket
			"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off",
			"-c", "max_connections=200", "-c", "shared_buffers=32MB")
	}, func(*process) error {
		status, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
		if err != nil {
			return err
		}
		// The file says so once connections are served, by this server and
		// not by one that took the port before it.
		if !strings.Contains(string(status), "\nready") {
			return fmt.Errorf("postmaster.pid says %q", status)
		}
		return nil
	})
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
}

// launch starts the server of a database on a free port, waits until it is ready
// and accepts connections, and ends it with the test.
func launch(t testing.TB, name string, owner account, dir string, command func(port int) *exec.Cmd, ready func(*process) error) (port int) {
	t.Helper()
	err := onFreePort(func(free int) error {
		cmd := command(free)
		cmd.Dir = dir
		owner.run(cmd)
		proc, err := startProcess(cmd)
		if err != nil {
			return err
		}
		err = proc.Poll(patience, func() error {
			if err := ready(proc); err != nil {
				return err
			}
			return accepts(free)
		})
		if err != nil {
			proc.Kill()
			return err
		}
		// An immediate shutdown takes the children of PostgreSQL along, which
		// would otherwise write into a directory that is being removed.
		t.Cleanup(func() { proc.Stop(10 * time.Second) })
		port = free
		return nil
	})
	if err != nil {
		t.Fatalf("servertest: %s: %v", name, err)
	}
	return port
}

const postgresName = "PostgreSQL"

func postgresBinaries() (initdb, server string, err error) {
	// Debian keeps the server's own programs out of PATH, by version.
	const debian = "/usr/lib/postgresql/*/bin"
	if initdb, err = find([]string{"initdb"}, debian); err != nil {
		return "", "", err
	}
	server, err = find([]string{"postgres"}, debian)
	return initdb, server, err
}

// prepare runs a program that lays out a data directory.
func prepare(owner account, dir, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir // the owner may not be allowed to enter the test's own
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	owner.run(cmd)
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-time.After(4 * patience):
		p.Kill()
		return fmt.Errorf("%s hangs\n%s", program, p.Log())
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %v\n%s", program, cmd.ProcessState, p.Log())
	}
	return nil
}
