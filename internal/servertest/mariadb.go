package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// mariaSetup runs on every start. The installation allows root without a
// password by name only on some systems, and the server does not look up names.
const mariaSetup = `CREATE DATABASE IF NOT EXISTS test;
CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
`

// MariaDB starts a throwaway MariaDB server with an empty database test, ends
// it with the test, and returns its address as mysql://root@127.0.0.1:PORT/test.
// The test is skipped where MariaDB is not installed.
func MariaDB(t testing.TB) string {
	t.Helper()
	install, server, err := mariaBinaries()
	require(t, mariaName, err)

	dir := t.TempDir()
	setup := filepath.Join(dir, "setup.sql")
	err = os.WriteFile(setup, []byte(mariaSetup), 0o644)
	if err != nil {
		t.Fatalf("servertest: %s: %v", mariaName, err)
	}
	owner, err := unprivileged("mysql")
	if err == nil {
		err = owner.own(dir)
	}
	if err != nil {
		t.Fatalf("servertest: %s: %v", mariaName, err)
	}
	data := filepath.Join(dir, "data")
	err = prepare(owner, dir, install, "--no-defaults", "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db")
	if err != nil {
		t.Fatalf("servertest: %s: %v", mariaName, err)
	}

	port := launch(t, mariaName, owner, dir, func(port int) *exec.Cmd {
		return exec.Command(server, "--no-defaults", "--datadir="+data,
			"--bind-address=127.0.0.1", "--port="+strconv.Itoa(port), "--skip-name-resolve",
			"--socket=s", "--pid-file=pid", // relative to the data directory: a full path is too long for a socket
			"--init-file="+setup, "--skip-log-bin",
			"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M",
			"--max-connections=200")
	}, func(proc *process) error {
		// Its own log, since the port may belong to another server.
		if !strings.Contains(proc.Log(), "ready for connections") {
			return errors.New("not ready for connections")
		}
		return nil
	})
	return fmt.Sprintf("mysql://root@127.0.0.1:%d/test", port)
}

const mariaName = "MariaDB"

func mariaBinaries() (install, server string, err error) {
	if install, err = find([]string{"mariadb-install-db"}); err != nil {
		return "", "", err
	}
	// The server is not in everybody's PATH.
	server, err = find([]string{"mariadbd"}, "/usr/sbin", "/usr/libexec", "/usr/local/libexec")
	return install, server, err
}
