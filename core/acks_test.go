package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestReplicaAcksCostTwoCommandsAndCountAsARenewal(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 2, 3*time.Second)
		var acquired []holdfast.Event
		r := newReplica(t, b, holdfast.WithReplicaAcks(2, 5*time.Second), holdfast.WithReentrancy(),
			holdfast.WithTrace(&holdfast.Trace{Acquired: func(e holdfast.Event) { acquired = append(acquired, e) }}))
		warm(t, r)
		begin := time.Now()
		b.ResetCommands()
		lock := acquire(t, r.Locker, "k")
		if got := time.Since(begin); got != 3*time.Second {
			t.Errorf("acquired after %v, want the 3s that the replicas took", got)
		}
		if got := b.Commands(); got["evalsha"] != 1 || got["eval"] != 1 || got["wait"] != 1 || got.Total() != 3 {
			t.Errorf("commands: %v, want the acquisition, a renewal and a WAIT", got)
		}
		// The wait is not added to the lease, on neither side.
		if got, want := lock.Deadline(), begin.Add(15*time.Second-holdfast.Margin(15*time.Second)); !got.Equal(want) {
			t.Errorf("deadline %v after the start, want %v", got.Sub(begin), want.Sub(begin))
		}
		if got := b.Redis.TTL("k"); got != 12*time.Second {
			t.Errorf("TTL %v, want 12s", got)
		}
		if e := acquired[len(acquired)-1]; e.Elapsed != 3*time.Second || e.Token != lock.Token() {
			t.Errorf("Trace.Acquired: %+v, want 3s elapsed", e)
		}
		// Nothing that follows waits again.
		b.ResetCommands()
		begin = time.Now()
		nested, err := r.Acquire(lock.Context(background), "k")
		if err != nil {
			t.Fatal(err)
		}
		release(t, nested)
		if err := lock.Extend(background, 15*time.Second); err != nil {
			t.Error(err)
		}
		if time.Since(begin) != 0 || b.Commands()["wait"] != 0 {
			t.Errorf("nesting and extending took %v and %v", time.Since(begin), b.Commands())
		}
		time.Sleep(time.Minute)
		if err := lock.Err(); err != nil || b.Commands()["wait"] != 0 {
			t.Errorf("after a minute: %v, %v", err, b.Commands())
		}
		release(t, lock)
		shutdown(t, r.Locker)
	})
}

func TestTooFewAcksFailAndFreeTheKey(t *testing.T) {
	for want, set := range map[string]func(*testing.T, *servertest.Bubble){
		"2 of 3 replicas acknowledged in 100ms": func(t *testing.T, b *servertest.Bubble) { lagging(t, b, 2, time.Millisecond) },
		"0 of 3 replicas acknowledged in 100ms": func(t *testing.T, b *servertest.Bubble) { lagging(t, b, 3, time.Second) },
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			set(t, b)
			var failures []holdfast.Event
			r := newReplica(t, b, holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { failures = append(failures, e) }}))
			c := newReplica(t, b)
			begin := time.Now()
			_, err := r.Acquire(background, "k", holdfast.WithReplicaAcks(3, 100*time.Millisecond))
			same(t, err, `holdfast: acquire "k": no verdict from redis: `+want)
			wantIs(t, err, holdfast.ErrUnavailable)
			if errors.Is(err, holdfast.ErrNotAcquired) || errors.Is(err, holdfast.ErrLost) {
				t.Errorf("got %v, want nothing but ErrUnavailable", err)
			}
			if got := time.Since(begin); got != 100*time.Millisecond {
				t.Errorf("failed after %v, want 100ms", got)
			}
			if len(failures) != 1 || failures[0].Key != "k" || !contains(failures[0].Err, want) {
				t.Errorf("Trace.NodeError: %+v", failures)
			}
			synctest.Wait()
			if b.Redis.Exists("k") {
				t.Error("the key was left behind")
			}
			err = r.Do(background, "k", func(context.Context) error {
				t.Error("ran without enough acknowledgements")
				return nil
			}, holdfast.WithReplicaAcks(3, 100*time.Millisecond))
			wantIs(t, err, holdfast.ErrUnavailable)
			synctest.Wait()
			release(t, acquire(t, c.Locker, "k"))
			release(t, acquire(t, r.Locker, "k"))
			shutdown(t, r.Locker)
			if keys := b.Redis.Keys(); !slices.Equal(keys, []string{"{k}:~fence", "{start}:~fence"}) {
				t.Errorf("left behind: %q", keys)
			}
		})
	}
}

// miniredis answers WAIT itself, at once: it has no replica.
func TestNoReplicaIsAFailure(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		_, err := r.TryAcquire(background, "k", holdfast.WithReplicaAcks(1, time.Second))
		same(t, err, `holdfast: acquire "k": no verdict from redis: 0 of 1 replicas acknowledged in 1s`)
		synctest.Wait()
		if b.Redis.Exists("k") {
			t.Error("the key was left behind")
		}
		shutdown(t, r.Locker)
	})
}

func TestWaitForAcksEndsWithItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 5*time.Second)
		r := newReplica(t, b, holdfast.WithReplicaAcks(1, 10*time.Second))
		for name, want := range map[string]error{"deadline": context.DeadlineExceeded, "cancel": context.Canceled} {
			ctx, cancel := context.WithTimeout(background, 2*time.Second)
			if name == "cancel" {
				time.AfterFunc(time.Second, cancel)
			}
			begin := time.Now()
			_, err := r.Acquire(ctx, "k")
			wantIs(t, err, holdfast.ErrUnavailable, want)
			if got := time.Since(begin); got > 2*time.Second || name == "cancel" && got != time.Second {
				t.Errorf("%s: returned after %v", name, got)
			}
			cancel()
			synctest.Wait()
			if b.Redis.Exists("k") {
				t.Errorf("%s: the key was left behind", name)
			}
		}
		// Its holder before is no reason.
		held := acquire(t, newReplica(t, b).Locker, "held")
		time.AfterFunc(time.Second, func() { release(t, held) })
		ctx, cancel := context.WithTimeout(background, 4*time.Second)
		defer cancel()
		_, err := r.Acquire(ctx, "held")
		wantIs(t, err, holdfast.ErrUnavailable, context.DeadlineExceeded)
		if errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v, nobody else had it", err)
		}

		time.Sleep(10 * time.Second)
		begin, down := time.Now(), make(chan time.Duration)
		time.AfterFunc(time.Second, func() {
			shutdown(t, r.Locker)
			down <- time.Since(begin)
		})
		_, err = r.Acquire(background, "k")
		wantIs(t, err, holdfast.ErrClosed)
		if got := time.Since(begin); got != time.Second {
			t.Errorf("returned %v after the start, want 1s, with Shutdown", got)
		}
		synctest.Wait()
		if b.Redis.Exists("k") {
			t.Error("Shutdown: the key was left behind")
		}
		if got := <-down; got != 5*time.Second {
			t.Errorf("Shutdown returned %v after the start, want 5s, with the WAIT under way", got)
		}
	})
}

// A grant from the line begins with a short lease and was written on somebody else's connection.
func TestGrantFromTheLineWaitsForAcks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 4*time.Second) // longer than a grant's first lease
		holder, r := newReplica(t, b), newReplica(t, b, holdfast.WithTTL(30*time.Second))
		warm(t, r)
		for _, within := range []time.Duration{10 * time.Second, time.Second} {
			lock := acquire(t, holder.Locker, "k")
			got := make(chan *holdfast.Lock)
			go func() {
				lock, err := r.Acquire(background, "k", holdfast.WithReplicaAcks(1, within))
				if err != nil && (within != time.Second || !errors.Is(err, holdfast.ErrUnavailable)) {
					t.Errorf("within %v: %v", within, err)
				}
				got <- lock
			}()
			time.Sleep(500 * time.Millisecond)
			b.ResetCommands()
			begin := time.Now()
			release(t, lock)
			next := <-got
			if n := b.Commands(); n["wait"] != 1 || n["eval"] != 1 {
				t.Errorf("within %v: commands %v", within, n)
			}
			if next == nil {
				if waited := time.Since(begin); within != time.Second || waited != within {
					t.Errorf("within %v: failed after %v", within, waited)
				}
				synctest.Wait()
				if b.Redis.Exists("k") {
					t.Error("the key was left behind")
				}
				continue
			}
			if waited := time.Since(begin); waited != 4*time.Second {
				t.Errorf("waited %v, want the 4s of the replica", waited)
			}
			if d := time.Until(next.Deadline()); d != 26*time.Second-holdfast.Margin(30*time.Second) {
				t.Errorf("deadline in %v, want the whole lease less 4s", d)
			}
			release(t, next)
		}
		shutdown(t, r.Locker)
		shutdown(t, holder.Locker)
	})
}

// Calls of one process that queue for the lock have it acknowledged each, and one that fails passes its turn on to
// calls that want less.
func TestAcksAreNotHandedOverWithinAProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 10*time.Millisecond)
		r := newReplica(t, b)
		enough, tooMany := holdfast.WithReplicaAcks(1, time.Second), holdfast.WithReplicaAcks(2, time.Second)
		lock := acquire(t, r.Locker, "k")
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i, opts := range [][]holdfast.CallOption{{enough}, {}, {enough}, {tooMany}, {}, {enough}, {tooMany}, {enough}} {
			wg.Go(func() {
				err := r.Do(background, "k", func(context.Context) error {
					time.Sleep(time.Millisecond)
					return nil
				}, opts...)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					wantIs(t, err, holdfast.ErrUnavailable)
					order = append(order, "failed")
				}
				order = append(order, strconv.Itoa(i))
			})
			time.Sleep(time.Millisecond)
		}
		b.ResetCommands()
		begin := time.Now()
		release(t, lock)
		wg.Wait()
		if got, want := strings.Join(order, " "), "0 1 2 failed 3 4 5 failed 6 7"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		if n := b.Commands()["wait"]; n != 6 {
			t.Errorf("%d times WAIT for 6 that asked for it", n)
		}
		if took := time.Since(begin); took > 2200*time.Millisecond {
			t.Errorf("took %v, want two timeouts of 1s and little more", took)
		}
		synctest.Wait()
		if b.Redis.Exists("k") {
			t.Error("the key was left behind")
		}
		shutdown(t, r.Locker)
	})
}

// A call that joins the holders of an id waits for the replicas too, and leaves the lock with the others where they lag.
func TestReplicaAcksWithAReentryID(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 10*time.Millisecond)
		r, c := newReplica(t, b), newReplica(t, b)
		id := holdfast.WithReentryID("id")
		one := acquire(t, r.Locker, "k", id, holdfast.WithReplicaAcks(1, time.Second))
		two := acquire(t, c.Locker, "k", id, holdfast.WithReplicaAcks(1, time.Second))
		if n := b.Commands()["wait"]; n != 2 || one.Token() != two.Token() {
			t.Errorf("%d times WAIT for two", n)
		}
		release(t, one)
		_, err := r.TryAcquire(background, "k", id, holdfast.WithReplicaAcks(2, time.Second))
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, "1 of 2 replicas") {
			t.Error(err)
		}
		shutdown(t, r.Locker)
		if err := two.Extend(background, time.Minute); err != nil || !b.Redis.Exists("k") {
			t.Errorf("the one who had it: %v", err)
		}
		release(t, two)
		if b.Redis.Exists("k") {
			t.Error("the key was left behind")
		}
		shutdown(t, c.Locker)
	})
}
