package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// renewals is a hook of a client that decides what becomes of each renewal.
type renewals struct {
	on  atomic.Bool
	n   atomic.Int32
	act func(n int, send func() error) error
}

func (*renewals) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*renewals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *renewals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		var args []string
		for _, a := range cmd.Args() {
			args = append(args, fmt.Sprint(a))
		}
		if name := holdfast.ScriptName(args); !h.on.Load() || !strings.Contains(name, "renew") && !strings.Contains(name, "keep") {
			return next(ctx, cmd)
		}
		err := h.act(int(h.n.Add(1)), func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

// A renewal that fails late, once the next one is under way, leaves that one its answer: of readers as of a lock that is held
// alone.
func TestReadersTakeTheAnswerOfTheirLatestRenewal(t *testing.T) {
	for _, opts := range [][]holdfast.CallOption{nil, {holdfast.WithShared()}} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rdb := b.Client()
			hook := &renewals{act: func(n int, send func() error) error {
				switch n {
				case 1: // at 1 s; the next one goes out 750 ms later
					time.Sleep(800 * time.Millisecond)
					return errors.New("read: connection reset by peer")
				case 2:
					err := send()
					time.Sleep(80 * time.Millisecond)
					return err
				}
				time.Sleep(2 * time.Second)
				return errors.New("read: i/o timeout")
			}}
			rdb.AddHook(hook)
			l := newLocker(t, rdb, holdfast.WithTTL(3*time.Second))
			warm := acquire(t, l, "warm", opts...)
			extend(t, warm, 4*time.Second) // so that Redis has the script
			release(t, warm)
			hook.on.Store(true)
			lock := acquire(t, l, "k", opts...)
			time.Sleep(3500 * time.Millisecond)
			if err := lock.Err(); err != nil {
				t.Errorf("with %d options: %v, though Redis has renewed it", len(opts), err)
			}
			_ = lock.Release(background)
			shutdown(t, l)
		})
	}
}

// Readers that want leases of different lengths are renewed together, whichever of them asks first.
func TestReadersWithABoundAreRenewedWithTheOthers(t *testing.T) {
	for _, boundedFirst := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b, holdfast.WithTTL(3*time.Second))
			var locks []*holdfast.Lock
			for _, bounded := range []bool{boundedFirst, !boundedFirst} {
				opts := []holdfast.CallOption{holdfast.WithShared()}
				if bounded {
					opts = append(opts, holdfast.WithMaxHold(3700*time.Millisecond))
				}
				locks = append(locks, acquire(t, r.Locker, "k", opts...))
			}
			time.Sleep(1100 * time.Millisecond)
			r.link.CutUp()
			time.Sleep(1900 * time.Millisecond)
			for i, lock := range locks {
				if err := lock.Err(); err != nil {
					t.Errorf("bounded first %v: reader %d: %v", boundedFirst, i, err)
				}
			}
			r.link.Heal()
			for _, lock := range locks {
				_ = lock.Release(background)
			}
			empty(t, b, r)
		})
	}
}

// A hook that panics as it is told of the loss leaves nothing behind, whichever of the readers it is told of.
func TestReadersWithAHookThatPanicsLoseTogether(t *testing.T) {
	for _, finds := range []int{0, 1, 2} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			boom := holdfast.WithTrace(&holdfast.Trace{Ended: func(holdfast.Event) { panic("a hook") }})
			locks := []*holdfast.Lock{
				acquire(t, r.Locker, "k", holdfast.WithShared()),
				acquire(t, r.Locker, "k", holdfast.WithShared(), boom),
				acquire(t, r.Locker, "k", holdfast.WithShared()),
			}
			b.Redis.Del("k")
			panics(t, func() { _ = locks[finds].Extend(background, time.Minute) })
			for _, lock := range locks {
				_ = lock.Extend(background, time.Minute)
				wantIs(t, lock.Err(), holdfast.ErrLost)
				wantIs(t, lock.Release(background), holdfast.ErrLost)
			}
			empty(t, b, r)
		})
	}
}

// A loss that is found while DoAll asks for the rest, at the end of its wait, is no cancellation.
func TestDoAllThatLosesOneNeverSeemsCancelled(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b, holdfast.WithTTL(4*time.Second)), newReplica(t, b)
		openInbox(t, b, r)
		blocker := acquire(t, other.Locker, "b")
		done := make(chan error, 1)
		late := &holdfast.Trace{Acquired: func(e holdfast.Event) {
			if e.Key == "b" { // the answers for c and d come when a has ended
				r.link.CutUp()
				time.AfterFunc(950*time.Millisecond, r.link.Heal)
			}
		}}
		go func() {
			done <- r.DoAll(background, []string{"a", "b", "c", "d"}, func(context.Context) error { return nil },
				holdfast.WithWait(3500*time.Millisecond), holdfast.WithMaxHold(4*time.Second), holdfast.WithTrace(late))
		}()
		time.Sleep(3450 * time.Millisecond)
		release(t, blocker)
		if err := <-done; errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.Sleep(time.Minute) // what it gave back is released in the background
		empty(t, b, r, other)
	})
}
