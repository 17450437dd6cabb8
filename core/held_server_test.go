package holdfast_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Six calls of one id that overlap for ever, and a waiter that comes again and again.
func TestServerReentryIDLeavesAWaiterItsTurn(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	id := holdfast.WithReentryID("job-7")
	ctx, stop := context.WithCancel(background)
	defer stop()
	var callers sync.WaitGroup
	var ls []*holdfast.Locker
	var holds atomic.Int64
	for i := range 6 {
		l := newLocker(t, server.Client())
		ls = append(ls, l)
		callers.Go(func() {
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			for ctx.Err() == nil {
				lock, err := l.Acquire(ctx, "k", id)
				if err != nil {
					return
				}
				holds.Add(1)
				time.Sleep(30 * time.Millisecond)
				if err := lock.Release(background); err != nil {
					t.Error(err)
				}
			}
		})
	}
	until(t, "all go round", func() bool { return holds.Load() > 12 })
	stranger := newLocker(t, server.Client())
	for range 5 {
		before := holds.Load()
		lock := obtain(t, stranger, "k", holdfast.WithWait(hang/2))
		// The first holder lets the other five in, perhaps several times where it is slow to leave.
		if n := holds.Load() - before; n > 60 {
			t.Errorf("%d holds went before", n)
		}
		release(t, lock)
	}
	stop()
	callers.Wait()
	for _, l := range append(ls, stranger) {
		shutdown(t, l)
	}
}
