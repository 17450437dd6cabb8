package holdfast_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Waiters that leave the line.

// A waiter gives up in the moment in which it is granted the lock: its leave is on the way when the grant is made.
func TestLeaveThatCrossesAGrant(t *testing.T) {
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprint("told ", told), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder, r, next := newReplica(t, b), newReplica(t, b), newReplica(t, b)
				warm(t, r)
				lock := acquire(t, holder.Locker, "k")
				ctx, cancel := context.WithCancel(background)
				gone := call(ctx, r, "k")
				time.Sleep(20 * time.Millisecond)
				behind := call(background, next, "k")
				w := watchKey(t, b, "k")
				w.add(lock)
				if !told {
					r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.LoseReply })
				}
				leaves := make(chan struct{})
				r.link.OnCommand(first("forget", servertest.HoldRequest(leaves)))
				cancel()
				wantIs(t, (<-gone).err, holdfast.ErrNotAcquired, context.Canceled)
				release(t, lock)
				limit := time.Duration(0) // told, it gives the lock back without being asked
				if !told {
					time.AfterFunc(time.Second, func() { close(leaves) })
					limit = time.Second
				}
				second, waited := w.get(behind)
				if waited > limit {
					t.Errorf("the next one waited for %v", waited)
				}
				if told {
					close(leaves)
				}
				time.Sleep(5 * time.Second) // nothing of that touches the later hold
				release(t, second)
				w.end()
				empty(t, b, holder, r, next)
			})
		})
	}
}

// Whatever ends a wait, the place in line is given up at once, and those behind move up.
func TestEndOfAWaitLeavesTheLine(t *testing.T) {
	for _, c := range []struct {
		name string
		wait []holdfast.CallOption
		end  func(r *replica, cancel context.CancelFunc)
		err  error
	}{
		{"WithWait", []holdfast.CallOption{holdfast.WithWait(3500 * time.Millisecond)}, func(*replica, context.CancelFunc) {}, holdfast.ErrNotAcquired},
		{"context", nil, func(_ *replica, cancel context.CancelFunc) { cancel() }, context.Canceled},
		{"shutdown", nil, func(r *replica, _ context.CancelFunc) { _ = r.Shutdown(background) }, holdfast.ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				holder, r, next := newReplica(t, b), newReplica(t, b), newReplica(t, b)
				lock := acquire(t, holder.Locker, "k")
				ctx, cancel := context.WithCancel(background)
				defer cancel()
				ends := call(ctx, r, "k", c.wait...)
				time.Sleep(20 * time.Millisecond)
				behind := call(background, next, "k")
				if n := inLine(t, b); n != 2 {
					t.Fatalf("%d in line", n)
				}
				begin := time.Now()
				time.Sleep(3500 * time.Millisecond)
				c.end(r, cancel)
				res := <-ends
				wantIs(t, res.err, c.err)
				if d := res.at.Sub(begin); d > 3500*time.Millisecond {
					t.Errorf("it ended after %v", d)
				}
				synctest.Wait()
				if n := inLine(t, b); n != 1 {
					t.Errorf("%d in line after one has left", n)
				}
				w := watchKey(t, b, "k")
				w.add(lock)
				release(t, lock)
				if d := w.serve(behind); d > 20*time.Millisecond {
					t.Errorf("the next was served after %v", d)
				}
				w.end()
				empty(t, b, holder, r, next)
			})
		})
	}
}

// A look that arrives after its waiter has left does not join the line again, nor take the lock; whether it was sent
// once or, for want of an answer, twice.
func TestDelayedLookDoesNotJoinTheLine(t *testing.T) {
	for _, free := range []bool{false, true} {
		for _, look := range []int64{1, 3} { // the one that joins, or one of those that keep the place
			t.Run(fmt.Sprint("look ", look, " free ", free), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					holder, r, next := newReplica(t, b), newReplica(t, b), newReplica(t, b)
					warm(t, r)
					lock := acquire(t, holder.Locker, "k", holdfast.WithTTL(time.Hour))
					until := make(chan struct{})
					var looks atomic.Int64
					r.link.OnCommand(func(args []string) servertest.Verdict {
						if kind(args) == "acquire" {
							if n := looks.Add(1); n == look || n == look+1 {
								return servertest.HoldRequest(until)
							}
						}
						return servertest.Pass
					})
					ctx, cancel := context.WithTimeout(background, 10*time.Second)
					defer cancel()
					wantIs(t, (<-call(ctx, r, "k")).err, context.DeadlineExceeded)
					time.Sleep(5 * time.Second)
					if n := looks.Load(); n < look+1 {
						t.Fatalf("%d looks", n)
					}
					if free {
						release(t, lock)
					}
					close(until)
					time.Sleep(time.Second)
					if n := inLine(t, b); n != 0 {
						t.Errorf("%d in line", n)
					}
					if free {
						lock = acquire(t, holder.Locker, "k")
					}
					behind := call(background, next, "k")
					w := watchKey(t, b, "k")
					w.add(lock)
					release(t, lock)
					if d := w.serve(behind); d > 20*time.Millisecond {
						t.Errorf("the next was served after %v", d)
					}
					w.end()
					empty(t, b, holder, r, next)
				})
			})
		}
	}
}
