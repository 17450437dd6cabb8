package holdfast_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Err compares clocks: it is right even if no goroutine of the Locker has run since the deadline. A bubble's
// timers fire in order, so here the check is made from a timer for the same moment.
func TestErrDoesNotNeedATimer(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", holdfast.WithoutRenewal())
		holdfast.StopTimer(r.Locker)
		time.Sleep(time.Until(lock.Deadline()) - time.Nanosecond)
		if err := lock.Err(); err != nil || lock.Context(background).Err() != nil {
			t.Errorf("before the deadline: %v, %v", err, lock.Context(background).Err())
		}
		time.Sleep(time.Nanosecond)
		if isDone(lock.Context(background)) {
			t.Fatal("something has fired, this test shows nothing")
		}
		if lock.Context(background).Err() == nil || !isDone(lock.Context(background)) {
			t.Error("the context's Err is nil at the deadline, or Done is open though Err is not nil")
		}
		wantIs(t, lock.Err(), holdfast.ErrLost)
		wantIs(t, lock.Release(background), holdfast.ErrLost)
	})
}

// The invariant behind every hold, looked at every few milliseconds: the holder's deadline comes before the
// end of the lease in Redis, however long requests and replies take.
func TestDeadlineIsNeverLaterThanTheLease(t *testing.T) {
	for name, delay := range map[string]func(*servertest.Link){
		"none":     func(*servertest.Link) {},
		"requests": func(l *servertest.Link) { l.DelayUp(200 * time.Millisecond) },
		"replies":  func(l *servertest.Link) { l.DelayDown(200 * time.Millisecond) },
		"both":     func(l *servertest.Link) { l.Delay(100 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				delay(r.link)
				lock := await(t, r.Locker, "k")
				looks := 0
				check := func(d time.Duration) {
					t.Helper()
					for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(3 * time.Millisecond) {
						if lock.Err() != nil {
							return
						}
						// Redis counts in whole milliseconds.
						if late := time.Until(lock.Deadline()) - b.Redis.TTL("k") - time.Millisecond; late > 0 {
							t.Fatalf("the deadline is %v later than the lease", late)
						}
						looks++
					}
				}
				check(5 * time.Second)
				extended := make(chan error)
				go func() { extended <- lock.Extend(background, 3*time.Second) }()
				check(2 * time.Second)
				fine(t, <-extended)
				check(5 * time.Second)
				if looks < 3000 {
					t.Errorf("lost after %d looks: %v", looks, lock.Err())
				}
				release(t, lock)
			}, holdfast.WithTTL(time.Second))
		})
	}
}

// What a holder gives away for clocks that drift, beside what it takes for itself to notice.
func TestMarginCoversDrift(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 15 * time.Second, time.Hour} {
		drift := ttl/100 + 2*time.Millisecond
		if got, want := holdfast.Margin(ttl), drift+max(25*time.Millisecond, ttl/20); got != want {
			t.Errorf("margin of %v: got %v, want %v", ttl, got, want)
		}
	}
}
