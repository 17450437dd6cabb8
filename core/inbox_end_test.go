package core_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Shutdown at any moment of an inbox's life: while it connects, subscribes, is told, breaks and pauses.
func TestShutdownOfAnInbox(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*servertest.Link){
		"healthy":            func(*servertest.Link) {},
		"slow":               func(l *servertest.Link) { l.Delay(40 * time.Millisecond) },
		"refused":            func(l *servertest.Link) { time.Sleep(50 * time.Millisecond); l.Refuse(errRefused); l.Reset() },
		"reset":              func(l *servertest.Link) { l.Delay(5 * time.Millisecond); time.AfterFunc(70*time.Millisecond, l.Reset) },
		"no answer":          func(l *servertest.Link) { l.OnCommand(command("subscribe", servertest.LoseReply)) },
		"closed at once":     func(l *servertest.Link) { l.OnCommand(command("subscribe", servertest.LoseReplyAndClose)) },
		"hung":               func(l *servertest.Link) { time.Sleep(50 * time.Millisecond); l.CutDown() },
		"hung while dialing": func(l *servertest.Link) { l.CutUp() },
	} {
		for at := time.Duration(0); at < 300*time.Millisecond; at += 19 * time.Millisecond {
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					holder, r := newReplica(t, b), newReplica(t, b)
					warm(t, r)
					lock := acquire(t, holder.Locker, "k")
					begin := time.Now()
					go fault(r.link)
					c := call(background, r, "k")
					time.AfterFunc(200*time.Millisecond, func() { release(t, lock) })
					time.Sleep(at - time.Since(begin))
					down := make(chan error, 1)
					go func() { down <- r.Shutdown(background) }()
					res := <-c
					if res.lock != nil { // the grant was faster
						r.link.Refuse(nil)
						r.link.Heal()
						release(t, res.lock)
					} else {
						wantIs(t, res.err, core.ErrClosed)
					}
					if d := time.Since(begin) - at; d > 80*time.Millisecond {
						t.Errorf("the waiter was told after %v", d)
					}
					time.Sleep(5 * time.Second)
					r.link.OnCommand(nil)
					r.link.Refuse(nil)
					r.link.Heal()
					if err := <-down; err != nil {
						t.Error(err)
					}
					synctest.Wait()
					if n := core.Under(r.Locker); n != 0 {
						t.Errorf("%d under way", n)
					}
					time.Sleep(time.Second)
					next := acquire(t, holder.Locker, "k")
					release(t, next)
					empty(t, b, holder)
				})
			})
		}
	}
}

func command(name string, v servertest.Verdict) func([]string) servertest.Verdict {
	return func(args []string) servertest.Verdict {
		if args[0] == name {
			return v
		}
		return servertest.Pass
	}
}

// The client is closed under those who wait: they are told, and nothing stays.
func TestClientClosedUnderAWaiter(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, holder.Locker, "k")
		c := call(background, r, "k")
		time.Sleep(time.Second)
		_ = r.rdb.Close()
		begin := time.Now()
		res := <-c
		wantIs(t, res.err, core.ErrUnavailable)
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("told after %v", d)
		}
		time.Sleep(30 * time.Second)
		if n := core.Under(r.Locker); n != 0 {
			t.Errorf("%d under way", n)
		}
		shutdown(t, r.Locker)
		release(t, lock)
		release(t, acquire(t, holder.Locker, "k"))
		empty(t, b, holder)
	})
}
