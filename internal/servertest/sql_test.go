package servertest

import (
	"io"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestPostgresAnswers(t *testing.T) {
	dsn := Postgres(t)
	u := parse(t, dsn)
	if u.Scheme != "postgres" || u.User.Username() != "postgres" || u.Path != "/postgres" || u.Query().Get("sslmode") != "disable" {
		t.Errorf("got address %s", dsn)
	}
	c := connect(t, u)
	// A start-up message of protocol 3.0; a server that trusts us answers with
	// an authentication of kind 0, without asking for anything.
	body := "\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"
	if _, err := c.Write(append([]byte{0, 0, 0, byte(len(body) + 4)}, body...)); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, c, 9), "R\x00\x00\x00\x08\x00\x00\x00\x00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	psql, err := exec.LookPath("psql")
	if err != nil {
		return
	}
	out, err := exec.Command(psql, "-At", dsn, "-c", "CREATE TABLE t (n int); INSERT INTO t VALUES (41); SELECT n + 1 FROM t").CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "42\n") {
		t.Errorf("psql: got %s, %v, want 42", out, err)
	}
}

func TestMariaDBAnswers(t *testing.T) {
	dsn := MariaDB(t)
	u := parse(t, dsn)
	if u.Scheme != "mysql" || u.User.Username() != "root" || u.Path != "/test" {
		t.Errorf("got address %s", dsn)
	}
	// The server greets with a packet of protocol version 10, or an error.
	if got := read(t, connect(t, u), 5); got[3:] != "\x00\x0a" {
		t.Errorf("greeting: got %q, want protocol 10", got)
	}
	client, err := exec.LookPath("mariadb")
	if err != nil {
		return
	}
	out, err := exec.Command(client, "--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--port="+u.Port(), "--user=root", "--skip-column-names",
		"--execute=CREATE TABLE t (n int); INSERT INTO t VALUES (41); SELECT n + 1 FROM t", "test").CombinedOutput()
	if err != nil || string(out) != "42\n" {
		t.Errorf("mariadb: got %s, %v, want 42", out, err)
	}
}

func TestDatabasesGoWithTheirTest(t *testing.T) {
	for name, start := range map[string]func(testing.TB) string{"PostgreSQL": Postgres, "MariaDB": MariaDB} {
		var host string
		t.Run(name, func(t *testing.T) { host = parse(t, start(t)).Host })
		if host != "" && dial(host) == nil {
			t.Errorf("%s outlived its test", name)
		}
	}
}

func parse(t *testing.T, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func connect(t *testing.T, u *url.URL) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func read(t *testing.T, c net.Conn, n int) string {
	t.Helper()
	got := make([]byte, n)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	return string(got)
}
