package core_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Within a process the lock is passed on without a command, each time with a larger token, first come first served.
func TestQueueOfOneProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		b.ResetCommands()
		const n = 200
		var order []int
		var tokens []int64
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				lock, err := r.Acquire(background, "k")
				if err != nil {
					t.Error(err)
					return
				}
				order, tokens = append(order, i), append(tokens, lock.Token())
				if lock.Err() != nil {
					t.Error(lock.Err())
				}
				release(t, lock)
			})
			synctest.Wait()
		}
		if got := b.Commands().Total(); got != 0 {
			t.Errorf("%d commands while %d wait", got, n)
		}
		last := lock.Token()
		release(t, lock)
		all.Wait()
		for i := range n {
			if order[i] != i {
				t.Fatalf("served in the order %v", order)
			}
			if tokens[i] <= last {
				t.Fatalf("token %d after %d", tokens[i], last)
			}
			last = tokens[i]
		}
		// The first tenure is over with the lock above, and 64 times handed over each.
		if got := b.Commands().Total(); got > n/10 {
			t.Errorf("%d commands for %d hand-overs", got, n)
		} else {
			t.Logf("%d commands for %d hand-overs", got, n)
		}
		shutdown(t, r.Locker)
		time.Sleep(2 * time.Minute)
		if keys := b.Redis.Keys(); len(keys) != 0 {
			t.Errorf("left behind: %v", keys)
		}
	})
}
