package servertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// verdictOf runs fn with a TB that only notes how fn ends the test.
func verdictOf(t *testing.T, fn func(testing.TB)) string {
	tb := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(tb)
	}()
	<-done
	return tb.verdict
}

type recorder struct {
	testing.TB
	verdict string
}

func (r *recorder) Skipf(format string, args ...any) {
	r.verdict = "skip: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.verdict = "fatal: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestMissingServerSkipsUnlessRequired(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HOLDFAST_REDIS_SERVER", filepath.Join(t.TempDir(), "none"))
	start := func(tb testing.TB) { Redis(tb) }

	t.Setenv("HOLDFAST_REQUIRE_SERVERS", "")
	if got := verdictOf(t, start); !strings.HasPrefix(got, "skip: servertest: redis-server is not installed") {
		t.Errorf("not required: got %q, want a skip", got)
	}
	t.Setenv("HOLDFAST_REQUIRE_SERVERS", "1")
	if got := verdictOf(t, start); !strings.HasPrefix(got, "fatal: servertest: redis-server is required") {
		t.Errorf("required: got %q, want a failure", got)
	}
	t.Setenv("HOLDFAST_REDIS_SERVER", "")
	if got := verdictOf(t, start); !strings.Contains(got, "no [redis-server valkey-server] in PATH") {
		t.Errorf("nothing in PATH: got %q", got)
	}
}

func TestMissingNamesWhatIsNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HOLDFAST_REDIS_SERVER", filepath.Join(t.TempDir(), "none"))
	if got := Missing(); !slices.Contains(got, redisName) || !slices.Contains(got, mariaName) {
		t.Errorf("got %v, want %s and %s among them", got, redisName, mariaName)
	}
	program := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOLDFAST_REDIS_SERVER", program)
	if got := Missing(); slices.Contains(got, redisName) {
		t.Errorf("got %v, want no %s", got, redisName)
	}
}

func TestFindPrefersPathThenTheHighestVersion(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"9", "15", "16", "path"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program := func(dir, name string) string {
		path := filepath.Join(root, dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pattern := filepath.Join(root, "1*")
	program("15", "serve")
	highest := program("16", "serve")
	t.Setenv("PATH", filepath.Join(root, "path"))
	if got, err := find([]string{"serve"}, pattern); got != highest || err != nil {
		t.Errorf("got %s, %v, want %s", got, err, highest)
	}
	inPath := program("path", "serve")
	if got, err := find([]string{"serve"}, pattern); got != inPath || err != nil {
		t.Errorf("got %s, %v, want %s", got, err, inPath)
	}
}

func TestTakenPortIsTriedNoMoreThanNeeded(t *testing.T) {
	var ports []int
	err := onFreePort(func(port int) error {
		ports = append(ports, port)
		if len(ports) < 3 {
			return errors.New("bind: address already in use")
		}
		return nil
	})
	if err != nil || len(ports) != 3 {
		t.Errorf("got %v after ports %v, want success at the third", err, ports)
	}
	broken := errors.New("cannot start at all")
	tries := 0
	err = onFreePort(func(int) error { tries++; return broken })
	if !errors.Is(err, broken) || tries != 1 {
		t.Errorf("got %v after %d tries, want the error of the first", err, tries)
	}
}
