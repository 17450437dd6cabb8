package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestDoHoldsUntilTheFunctionReturnsOrPanics(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		boom := errors.New("boom")
		err := r.Do(background, "k", func(ctx context.Context) error {
			held := holdfast.Held(ctx)
			if len(held) != 1 || held[0].Key() != "k" || held[0].Token() <= 0 || held[0].Err() != nil {
				t.Errorf("Held: got %v, want the lock k", held)
			}
			if !b.Redis.Exists("k") {
				t.Error("not held inside")
			}
			return boom
		})
		if !errors.Is(err, boom) || errors.Is(err, holdfast.ErrLost) {
			t.Errorf("got %v, want boom", err)
		}
		func() {
			defer func() {
				if v := recover(); v != "panic" {
					t.Errorf("recovered %v, want the panic to go on", v)
				}
			}()
			_ = r.Do(background, "k", func(context.Context) error { panic("panic") })
		}()
		if b.Redis.Exists("k") {
			t.Error("held after a panic")
		}
		if err := r.Do(background, "k", nil); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("Do without a function: got %v, want ErrInvalid", err)
		}
	})
}

// Every public call returns by its context's deadline with a server that accepts and says nothing.
func TestCallsReturnByTheirContextWithASilentServer(t *testing.T) {
	clients := map[string]func(*redis.Options){
		"default":         func(*redis.Options) {},
		"no read timeout": func(o *redis.Options) { o.ReadTimeout = -1; o.WriteTimeout = -1; o.MaxRetries = 5 },
		"context timeout": func(o *redis.Options) { o.ContextTimeoutEnabled = true },
	}
	for name, set := range clients {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := servertest.NewBubble(t)
				rdb := b.Client(set)
				l := newLocker(t, rdb)
				lock := acquire(t, l, "k")
				extended := acquire(t, l, "e", holdfast.WithTTL(time.Hour))
				b.Link(rdb).CutDown()
				within := func(what string, limit time.Duration, f func(ctx context.Context) error) {
					t.Helper()
					ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
					defer cancel()
					begin := time.Now()
					err := f(ctx)
					if d := time.Since(begin); d > limit {
						t.Errorf("%s: returned after %v, want %v", what, d, limit)
					}
					wantIs(t, err, holdfast.ErrUnavailable)
				}
				const soon = 200 * time.Millisecond
				within("Acquire", soon, func(ctx context.Context) error { _, err := l.Acquire(ctx, "a"); return err })
				within("TryAcquire", soon, func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "t"); return err })
				within("Do", soon, func(ctx context.Context) error { return l.Do(ctx, "d", func(context.Context) error { return nil }) })
				within("Inspect", soon, func(ctx context.Context) error { _, err := l.Inspect(ctx, "k"); return err })
				within("Extend", soon, func(ctx context.Context) error { return extended.Extend(ctx, time.Minute) })
				within("Release", soon, lock.Release)
				// Contexts that never end: own bounds.
				within("TryAcquire without a deadline", time.Second, func(context.Context) error { _, err := l.TryAcquire(background, "t"); return err })
				within("Inspect without a deadline", time.Second, func(context.Context) error { _, err := l.Inspect(background, "t"); return err })
				within("Acquire with a short wait", time.Second, func(context.Context) error {
					_, err := l.Acquire(background, "t", holdfast.WithWait(10*time.Millisecond))
					return err
				})
				within("Release without a deadline", 5*time.Second, func(context.Context) error { return extended.Release(background) })
				ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
				defer cancel()
				begin := time.Now()
				if err := l.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 200*time.Millisecond {
					t.Errorf("Shutdown: %v after %v", err, time.Since(begin))
				}
				b.Link(rdb).Heal()
				time.Sleep(time.Minute)
				if n := holdfast.Under(l); n != 0 {
					t.Errorf("%d calls under way a minute after the server came back", n)
				}
				if len(b.Redis.Keys()) > 0 {
					for _, k := range b.Redis.Keys() {
						if b.Redis.TTL(k) <= 0 {
							t.Errorf("key %q never expires", k)
						}
					}
				}
			})
		})
	}
}

func TestCheckJudgesWithoutANetwork(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithPrefix("shop:"))
		b.ResetCommands()
		for what, err := range map[string]error{
			"a key":        r.Check("k"),
			"options":      r.Check("k", holdfast.WithTTL(time.Second), holdfast.WithWait(0)),
			"of a claim":   tick.Check(r.Locker, "job", tick.WithMinGap(time.Second), tick.WithWindow(time.Hour, 0)),
			"the longest":  r.Check(strings.Repeat("k", 512-len("shop:"))),
			"with a trace": r.Check("k", holdfast.WithTrace(&holdfast.Trace{})),
		} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, err := range map[string]error{
			"empty":                r.Check(""),
			"a long key":           r.Check(strings.Repeat("k", 512)),
			"a bad option":         r.Check("k", holdfast.WithTTL(1)),
			"a bad window":         tick.Check(r.Locker, "job", tick.WithWindow(0, 0)),
			"a claim of no name":   tick.Check(r.Locker, ""),
			"a claim of a bad one": tick.Check(r.Locker, "a}b"),
			"a claim of nobody":    tick.Check(nil, "job"),
			"options that differ":  r.Check("k", holdfast.WithoutRenewal(), holdfast.WithMaxHold(time.Hour)),
			"nil":                  r.Check("k", nil),
		} {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: got %v, want ErrInvalid", what, err)
			}
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands", n)
		}
	})
}

// A Redis that is not there is the first mistake of a newcomer. Ping says so in the first line there is: it does not have
// go-redis dial again and again, which logs that.
func TestPingWhereNobodyListens(t *testing.T) {
	want := func(t *testing.T, err error, began time.Time, addr string, reason error) {
		t.Helper()
		wantIs(t, err, holdfast.ErrUnavailable)
		wantIs(t, err, reason)
		if text := fmt.Sprint(err); !strings.HasPrefix(text, "holdfast: ping: ") || !strings.Contains(text, "no Redis at "+addr+": start one there, or ") {
			t.Errorf("got %s", text)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	}
	for _, reason := range []error{
		os.NewSyscallError("connect", syscall.ECONNREFUSED),
		&net.DNSError{Err: "no such host", Name: "rediss", IsNotFound: true},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			r.link.Refuse(reason)
			began := time.Now()
			want(t, r.Ping(background), began, r.rdb.Options().Addr, reason)
			r.link.Refuse(nil)
			if err := r.Ping(background); err != nil {
				t.Errorf("after that: %v", err)
			}
		})
		bubbleOf(t, 3, func(t *testing.T, ms masters) {
			v := ms.voter(t)
			for _, link := range v.links {
				link.Refuse(reason)
			}
			began := time.Now()
			err := v.Ping(background)
			for _, m := range ms {
				want(t, err, began, m.Client().Options().Addr, reason)
			}
		})
	}
	// What may pass is tried again.
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(os.NewSyscallError("connect", syscall.ETIMEDOUT))
		time.AfterFunc(50*time.Millisecond, func() { r.link.Refuse(nil) })
		if err := r.Ping(background); err != nil {
			t.Error(err)
		}
	})
}

// A Ping or Inspect that runs out of time while a dial is tried again says why the one before failed.
func TestInspectSaysWhyARetryWasNeeded(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(errRefused)
		_, err := r.Inspect(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		wantIs(t, err, errRefused)
	})
}

func TestPing(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		if err := r.Ping(background); err != nil {
			t.Error(err)
		}
		r.link.Refuse(errRefused)
		r.link.Reset()
		err := r.Ping(background)
		wantIs(t, err, holdfast.ErrUnavailable)
		if err == nil || !strings.HasPrefix(err.Error(), "holdfast: ping: ") || !strings.Contains(err.Error(), errRefused.Error()) {
			t.Errorf("got %v, want the reason", err)
		}
		shutdown(t, r.Locker)
		wantIs(t, r.Ping(background), holdfast.ErrClosed)
	})
}
