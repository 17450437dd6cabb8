package core_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

var ended = func() context.Context {
	ctx, cancel := context.WithCancel(background)
	cancel()
	return ctx
}()

// panics checks that fn does.
func panics(t *testing.T, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	fn()
}

// A hook that panics ends its call; those behind it go on.
func TestQueueBehindAHookThatPanics(t *testing.T) {
	boom := func(core.Event) { panic("a hook") }
	for name, trace := range map[string]*core.Trace{
		"waiting":  {Waiting: boom},
		"acquired": {Acquired: boom},
		"error":    {NodeError: boom},
	} {
		for _, behind := range []bool{false, true} {
			t.Run(name+" "+strconv.FormatBool(behind), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					r, other := newReplica(t, b), newReplica(t, b)
					warm(t, r)
					var lock *core.Lock
					if behind {
						lock = acquire(t, r.Locker, "k")
					} else {
						lock = acquire(t, other.Locker, "k")
					}
					if name == "error" {
						r.link.OnCommand(first("acquire", servertest.LoseReplyAndClose))
					}
					go panics(t, func() { _, _ = r.Acquire(background, "k", core.WithTrace(trace)) })
					synctest.Wait()
					one := call(background, r, "k")
					release(t, lock)
					release(t, got(t, one))
					empty(t, b, r, other)
				})
			})
		}
	}
}

// Nor does one that panics as it is told of a loss, or of a release that fails, leave anything behind.
func TestHookThatPanicsAtTheEndOfAHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		boom := func(core.Event) { panic("a hook") }
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", core.WithoutRenewal(), core.WithTrace(&core.Trace{Lost: boom}))
		other := acquire(t, r.Locker, "other", core.WithTrace(&core.Trace{NodeError: boom}))
		r.link.CutUp()
		panics(t, func() { _ = other.Release(ended) })
		wantIs(t, other.Release(background), core.ErrUnavailable)
		r.link.Heal()
		core.StopTimer(r.Locker)
		time.Sleep(time.Minute)
		panics(t, func() { _ = lock.Err() })
		if b.Redis.Exists("other") {
			t.Error("not released")
		}
		empty(t, b, r)
	})
}
