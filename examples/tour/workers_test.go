package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestLockKeepsPayoutsApart(t *testing.T) {
	r := play(t, []scene{acts("workers", 1)}, nil)
	if r.status != 0 || r.stderr != "" {
		t.Errorf("got %s", r)
	}
	checkLocked(t, r)
}

func TestSchedulersEnqueueEachTickOnce(t *testing.T) {
	t.Parallel()
	r := play(t, []scene{acts("workers", 2)}, nil)
	if r.status != 0 || r.stderr != "" {
		t.Errorf("got %s", r)
	}
	var ticks, plain, once int
	_, text, _ := strings.Cut(r.stdout, "with a tick every second.\n\n")
	const format = "%d ticks: %d runs with asynq.Scheduler on each replica, %d with asynqlock.Scheduler."
	if _, err := fmt.Sscanf(text, format, &ticks, &plain, &once); err != nil || ticks < short.ticks || plain <= ticks || once != ticks {
		t.Errorf("%d ticks, %d and %d runs, %v, got %s", ticks, plain, once, err, r)
	}
}

// checkLocked checks the payouts with the lock.
func checkLocked(t *testing.T, r run) {
	t.Helper()
	if !strings.Contains(r.stdout, "With the lock, 24 payouts of 1 went out of 400, and 376 are left. 0 began while another") {
		t.Errorf("got %s", r)
	}
}

// The act without the lock, which here claims to have it.
func TestBrokenGuardMakesTheExitStatusOne(t *testing.T) {
	broken := acts("workers", 0)
	broken.acts[0].mustHold = true
	r := play(t, []scene{broken}, nil)
	if r.status != 1 || !strings.Contains(r.stderr, "payouts began while another") || !strings.Contains(r.stderr, "24 were paid out, and") {
		t.Errorf("got %s", r)
	}
}
