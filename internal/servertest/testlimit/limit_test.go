package testlimit

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// hangs is set in a process in which a test hangs: the way in which it does.
const hangs = "TESTLIMIT_HANGS"

func TestHangs(t *testing.T) {
	how := os.Getenv(hangs)
	if how == "" {
		t.Skip("for TestLimit")
	}
	slow := func(t *testing.T) {
		t.Parallel()
		time.Sleep(700 * time.Millisecond)
	}
	for range 5 { // most wait in Parallel for longer than a test may run
		t.Run("passes", slow)
	}
	var turn sync.Mutex
	for range 5 { // the last one in Turn, where they run side by side
		t.Run("takes turns", func(t *testing.T) {
			t.Parallel()
			Turn(&turn)
			defer turn.Unlock()
			time.Sleep(700 * time.Millisecond)
		})
	}
	t.Run("it hangs", func(t *testing.T) {
		t.Parallel()
		switch how {
		case "subtest":
			hang()
		case "bubble":
			synctest.Test(t, func(*testing.T) { hang() })
		case "cleanup":
			t.Cleanup(hang)
		case "failed":
			t.Cleanup(hang)
			t.FailNow()
		case "busy":
			for time.Now().Year() > 0 {
			}
		}
	})
}

func hang() {
	var mu sync.Mutex
	mu.Lock()
	mu.Lock()
}

func TestLimit(t *testing.T) {
	const name, limit = "TestHangs/it_hangs has run for more than 2s, in ", "github.com/holdfast-go/holdfast/internal/servertest/testlimit."
	for how, want := range map[string]string{
		"subtest": name + limit + "TestHangs.func3:",
		"bubble":  limit + "TestHangs.func3",
		"cleanup": name + limit + "hang:",
		"failed":  name + limit + "TestHangs.func3:",
		"busy":    name + limit + "TestHangs.func3:",
		"none":    "PASS",
		"turns":   "PASS",
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			atOnce := "1"
			if how == "turns" {
				atOnce = "20"
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestHangs$", "-test.parallel="+atOnce, "-test.timeout=1m", "-test.count=2")
			cmd.Env = append(os.Environ(), hangs+"="+how, "HOLDFAST_TEST_LIMIT=2s")
			began := time.Now()
			out, err := cmd.CombinedOutput()
			if (err == nil) != (want == "PASS") || !strings.Contains(string(out), want) || strings.Contains(string(out), "test timed out") {
				t.Errorf("after %v: got %v, want %q, in\n%s", time.Since(began), err, want, out)
			}
		})
	}
}
