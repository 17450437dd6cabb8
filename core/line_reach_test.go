package holdfast_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Waiters that the server cannot tell of a grant.

// Somebody listens to all channels, and counts among the receivers of every message. A waiter that is gone is passed
// over all the same, and nothing is published to it that will not be true.
func TestWaiterWhoIsPassedOverIsToldNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder := newReplica(t, b)
		lock := acquire(t, holder.Locker, "k")
		rs, calls := lineUp(t, b, 2, "k")
		all := b.Client().PSubscribe(background, "*")
		defer all.Close()
		if _, err := all.Receive(background); err != nil {
			t.Fatal(err)
		}
		w := watchKey(t, b, "k")
		w.add(lock)
		rs[0].link.Refuse(errRefused)
		rs[0].link.Reset()
		time.Sleep(10 * time.Millisecond)
		release(t, lock)
		next, waited := w.get(calls[1])
		if waited > 0 {
			t.Errorf("the living waited for %v", waited)
		}
		for range 2 {
			ctx, cancel := context.WithTimeout(background, time.Second)
			msg, err := all.ReceiveMessage(ctx)
			cancel()
			if err != nil {
				break
			}
			if !contains(errorText(msg.Payload), holdfast.Owner(next)) {
				t.Errorf("published, and not true: %q", msg.Payload)
			}
		}
		release(t, next)
		rs[0].link.Refuse(nil)
		w.serve(calls[0])
		w.end()
		empty(t, b, append(rs, holder)...)
	})
}

// A subscription that is taken and leads nowhere, at a server other than that of the lock, say. The waiter is not
// passed over for ever: it has its turn, and finds that by looking.
func TestWaiterOutOfReachHasItsTurn(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		b.Redis.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if cmd != "SUBSCRIBE" {
				return false
			}
			c.Block(func(w *server.Writer) {
				w.WritePushLen(3)
				w.WriteBulk("subscribe")
				w.WriteBulk(args[0])
				w.WriteInt(1)
			})
			return true
		})
		lock := acquire(t, r.Locker, "else")
		openInbox(t, b, r)
		release(t, lock)
		b.Redis.Server().SetPreHook(nil)

		ctx, cancel := context.WithCancel(background)
		t.Cleanup(cancel)
		var busy []*replica
		done := make(chan error, 3)
		for range 3 {
			p := newReplica(t, b)
			busy = append(busy, p)
			go func() {
				for ctx.Err() == nil {
					err := p.Do(background, "k", func(context.Context) error {
						time.Sleep(50 * time.Millisecond)
						return nil
					})
					if err != nil {
						t.Error(err)
						break
					}
				}
				done <- nil
			}()
		}
		time.Sleep(10 * time.Second)
		for range 5 {
			c := call(background, r, "k")
			begin := time.Now()
			lock := got(t, c)
			if d := time.Since(begin); d > 4*time.Second {
				t.Errorf("it waited for %v", d)
			}
			notLate(t, b, lock)
			release(t, lock)
		}
		cancel()
		for range busy {
			<-done
		}
		empty(t, b, append(busy, r)...)
	})
}

// There waiters that are gone cost a first lease each, until they count as dead.
func TestLineOfTheDeadInACluster(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder := newReplica(t, b)
		lock := acquire(t, holder.Locker, "k")
		var rs []*replica
		var calls []<-chan result
		for range 5 {
			rdb := b.Client()
			r := &replica{newLocker(t, opaque{rdb}), rdb, b.Link(rdb)}
			rs, calls = append(rs, r), append(calls, call(background, r, "k"))
			time.Sleep(20 * time.Millisecond)
		}
		w := watchKey(t, b, "k")
		w.add(lock)
		for _, r := range rs[:4] {
			r.link.Refuse(errRefused)
			r.link.Reset()
		}
		time.Sleep(10 * time.Millisecond)
		release(t, lock)
		next, waited := w.get(calls[4])
		if waited < 2*time.Second || waited > 7*time.Second {
			t.Errorf("the living waited for %v", waited)
		}
		for _, r := range rs[:4] {
			r.link.Refuse(nil)
		}
		time.Sleep(time.Second)
		release(t, next)
		w.serve(calls[:4]...)
		w.end()
		empty(t, b, append(rs, holder)...)
	})
}

type errorText string

func (e errorText) Error() string { return string(e) }
