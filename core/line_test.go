package core_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// waiters starts n calls, each of a process of its own, that wait for key in this order, and returns where their
// locks arrive.
func waiters(t *testing.T, b *servertest.Bubble, n int, key string, opts ...core.Option) ([]*replica, []chan *core.Lock) {
	t.Helper()
	rs, locks := make([]*replica, n), make([]chan *core.Lock, n)
	for i := range n {
		rs[i], locks[i] = newReplica(t, b, opts...), make(chan *core.Lock, 1)
		warm(t, rs[i])
		wait(t, rs[i], key, locks[i])
		time.Sleep(time.Millisecond)
	}
	return rs, locks
}

func wait(t *testing.T, r *replica, key string, to chan<- *core.Lock, opts ...core.CallOption) {
	go func() {
		lock, err := r.Acquire(background, key, opts...)
		if err != nil {
			t.Errorf("waiting for %s: %v", key, err)
		}
		to <- lock
	}()
}

// First come, first served, with two commands for each and one push; larger tokens each time.
func TestLineOfProcesses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 16, 128} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder := newReplica(t, b)
				lock := acquire(t, holder.Locker, "k")
				rs, locks := waiters(t, b, n, "k")
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				s, err := holder.Inspect(background, "k")
				if err != nil || s.Waiting != n {
					t.Fatalf("%+v, %v: want %d waiting", s, err, n)
				}
				var pushes atomic.Int64
				for _, r := range rs {
					r.link.OnMessage(func(string, string) servertest.Verdict {
						pushes.Add(1)
						return servertest.Pass
					})
				}
				b.ResetCommands()
				token := lock.Token()
				release(t, lock)
				for i := range n {
					lock := <-locks[i]
					if lock.Token() <= token {
						t.Errorf("token %d after %d", lock.Token(), token)
					}
					token = lock.Token()
					time.Sleep(time.Millisecond)
					release(t, lock)
				}
				if got := b.Commands(); got["evalsha"] != int64(n+1) || got.Total() != int64(n+1) {
					t.Errorf("%d commands to hand over %d times: %v", got.Total(), n, got)
				}
				if got := pushes.Load(); got != int64(n) {
					t.Errorf("%d pushes to hand over %d times", got, n)
				}
				for _, r := range append(rs, holder) {
					shutdown(t, r.Locker)
				}
				time.Sleep(2 * time.Minute)
				if keys := b.Redis.Keys(); len(keys) != 0 {
					t.Errorf("left behind: %v", keys)
				}
			})
		})
	}
}
