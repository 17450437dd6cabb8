package servertest

import (
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
