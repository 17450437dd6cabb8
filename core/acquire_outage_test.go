package holdfast_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A wrong address must not hang a call without a deadline for ever.
func TestAcquireGivesUpOnAnOutageOfALease(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(errors.New("connection refused"))
		begin := time.Now()
		_, err := r.Acquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if d := time.Since(begin); d < 15*time.Second || d > 17*time.Second {
			t.Errorf("gave up after %v, want about 15s", d)
		}
		begin = time.Now()
		_, err = r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if d := time.Since(begin); d > time.Second {
			t.Errorf("TryAcquire: %v", d)
		}
		r.link.Refuse(nil)
		release(t, acquire(t, r.Locker, "k"))
		// A shorter outage in the middle of a wait is waited out.
		c := newReplica(t, b)
		lock := acquire(t, c.Locker, "k")
		time.AfterFunc(2*time.Second, func() { r.link.Refuse(errors.New("refused")); r.link.Reset() })
		time.AfterFunc(9*time.Second, func() { r.link.Refuse(nil) })
		time.AfterFunc(20*time.Second, func() { release(t, lock) })
		lock, err = r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		release(t, lock)
	})
}

// The clean-up goes on for as long as the last acquire that can have taken effect may hold the lock, not for
// a lease after the last vain attempt to connect.
func TestCleanUpEndsWithTheLeaseThatMayBeThere(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		lock := acquire(t, c.Locker, "k")
		begin := time.Now()
		time.AfterFunc(2*time.Second, func() {
			r.link.Refuse(errors.New("refused"))
			r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequest })
			time.Sleep(time.Second) // a look goes unanswered
			r.link.Reset()
		})
		_, err := r.Acquire(background, "k", holdfast.WithWait(12*time.Second))
		wantIs(t, err, holdfast.ErrUnavailable)
		shutdown(t, r.Locker)
		if d := time.Since(begin); d > 20*time.Second { // with the pauses of the last try, which are random; from the end of the call it would be 27 s
			t.Errorf("Shutdown returned after %v, want a lease after the last command that was sent, at 3s", d)
		}
		release(t, lock)
	})
}

// A server that starts up refuses everything for a while; that passes by itself.
func TestAcquireWaitsWhileTheServerLoads(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		b.Redis.SetError("LOADING Redis is loading the dataset in memory")
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, `"k"`, "LOADING") || errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v, want the key and Redis' word in the text", err)
		}
		time.AfterFunc(3*time.Second, func() { b.Redis.SetError("") })
		begin := time.Now()
		lock, err := r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 3*time.Second || d > 3300*time.Millisecond {
			t.Errorf("got the lock after %v, want 3s and at most one pause", d)
		}
		release(t, lock)
		shutdown(t, r.Locker)
	})
}
