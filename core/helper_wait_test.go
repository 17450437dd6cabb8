package holdfast_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// hang bounds what a test on a real server waits for: an event, which only a hang keeps from coming.
const hang = 30 * time.Second

// within fails the test if f has not returned after hang.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(hang):
		t.Fatalf("%s: still not done after %v", what, hang)
	}
}

// until waits for cond.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if !comes(cond) {
		t.Fatalf("%s: not so after %v", what, hang)
	}
}

// comes waits for cond, and tells whether it came: for the goroutines of a test, which until must not end.
func comes(cond func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hang); !cond(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// atMost checks that no more than d has passed since began, and took that it was d.
func atMost(t *testing.T, began time.Time, d time.Duration) {
	t.Helper()
	if took := time.Since(began); took > d {
		t.Errorf("it took %v, want at most %v", took, d)
	}
}

func took(t *testing.T, began time.Time, d time.Duration) {
	t.Helper()
	if took := time.Since(began); took != d {
		t.Errorf("it took %v, want %v", took, d)
	}
}

// awaitRenewal waits until each lease has been lengthened, or its lock is gone. Deadline weighs two clocks, so that
// it moves by some nanoseconds of its own.
func awaitRenewal(t *testing.T, locks ...*holdfast.Lock) {
	t.Helper()
	var first []time.Time
	for _, lock := range locks {
		first = append(first, lock.Deadline().Add(50*time.Millisecond))
	}
	for i, lock := range locks {
		until(t, "a renewal of "+lock.Key(), func() bool { return lock.Deadline().After(first[i]) || lock.Err() != nil })
	}
}

// isDone tells whether Done is closed, without looking at the clock.
func isDone(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}
