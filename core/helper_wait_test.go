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
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hang); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not so after %v", what, hang)
		}
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
