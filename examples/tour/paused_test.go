package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// TestMain lets the test binary be a replica, as the program is.
func TestMain(m *testing.M) {
	if os.Getenv(shop.ProcessEnv) != "" {
		os.Exit(shop.Child(plays))
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "4") // those that are parallel mostly wait, and more would take each other's time
	}
	os.Exit(m.Run())
}

func TestPausedReplicaIsRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	r := play(t, []scene{acts("paused", 1)}, nil)
	if r.status != 0 || r.stderr != "" {
		t.Errorf("got %s", r)
	}
	checkFenced(t, r)
}

// checkFenced checks the second act: the database refuses what the replica that was stopped writes, and the request ends
// in an error.
func checkFenced(t *testing.T, r run) {
	t.Helper()
	if !shop.CanStop {
		return
	}
	for _, want := range []string{
		"SIGSTOP", "replica-2 has sold the lamp", `:product:lamp" is stale: the database has seen `,
		"Its request ended in a 503.", "With the fence the lamp was sold once",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in %s", want, r)
		}
	}
	if strings.Contains(r.stdout, "Nothing") {
		t.Errorf("got %s", r)
	}
}

// The act without the fence, which here claims to have it: what the replica that was stopped writes goes in, and that
// makes the exit status 1.
func TestBrokenFenceMakesTheExitStatusOne(t *testing.T) {
	t.Parallel()
	broken := acts("paused", 0)
	broken.acts[0].mustHold = true
	r := play(t, []scene{broken}, nil)
	if !shop.CanStop {
		return
	}
	if r.status != 1 || !strings.Contains(r.stderr, "lamp: 1 sales were of a unit that was sold already") {
		t.Errorf("got %s", r)
	}
	for _, want := range []string{
		"SIGSTOP", "replica-2 has sold the lamp", "Nothing stopped it", "Without the fence the one lamp was sold 2 times",
	} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in %s", want, r)
		}
	}
	if strings.Contains(r.stdout, "refuses") {
		t.Errorf("got %s", r)
	}
}

func TestInterruptWhileAReplicaIsStopped(t *testing.T) {
	if !shop.CanStop {
		t.Skip("no SIGSTOP here")
	}
	t.Setenv("TMPDIR", t.TempDir())
	file := filepath.Join(t.TempDir(), "shop.db")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr output
	go func() {
		for ctx.Err() == nil && !strings.Contains(stdout.String(), "SIGSTOP, ") {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	a := &app{
		stdout: &stdout, stderr: &stderr, size: short, scenes: []scene{acts("paused")},
		getenv: func(k string) string {
			return map[string]string{"DATABASE_URL": "sqlite://" + filepath.ToSlash(file)}[k]
		},
	}
	status := a.run(ctx, nil)
	if got := stderr.String(); status != 130 || got != "tour: interrupted: without the fence: context canceled\n" {
		t.Errorf("got status %d, %q", status, got)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v in the directory for temporary files, want nothing", left, err)
	}
	checkTables(t, "sqlite", "file:"+file, "SELECT count(*) FROM sqlite_master")
}
