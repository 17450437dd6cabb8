package holdfast_test

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A command runs on its caller's goroutine, where the client's hooks see it, if the client can be interrupted, no other
// command is under way, the context leaves time, and the link is none on which that takes long.
func TestInlineCommands(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newInline(t, b), newReplica(t, b)
		var mu sync.Mutex
		commands, inline := 0, 0
		seen := hook{one: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if strings.HasPrefix(cmd.Name(), "eval") {
				mu.Lock()
				if commands++; strings.Contains(string(debug.Stack()), "testing.tRunner(") { // the test's own goroutine
					inline++
				}
				mu.Unlock()
			}
			return next(ctx, cmd)
		}}
		r.rdb.AddHook(seen)
		other.rdb.AddHook(seen)
		cycle := func(r *replica, ctx context.Context, opts ...holdfast.CallOption) {
			t.Helper()
			synctest.Wait() // a lane answers before it is free
			lock, err := r.Acquire(ctx, "k", opts...)
			if synctest.Wait(); err == nil {
				err = lock.Release(ctx)
			}
			must(t, err)
		}
		check := func(what string, wantAll, want int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if commands != wantAll || inline != want {
				t.Errorf("%s: %d of %d commands by their callers, want %d of %d", what, inline, commands, want, wantAll)
			}
			commands, inline = 0, 0
		}
		warm(t, r)
		warm(t, other)
		cycle(r, background) // what warming up did with connections is over then
		commands, inline = 0, 0
		cycle(r, background)
		check("alone", 2, 2)
		cycle(other, background)
		check("by a client that cannot be interrupted", 2, 0)
		short := bounded(t, 200*time.Millisecond)
		cycle(r, short)
		check("with little time", 2, 0)
		cycle(r, background, holdfast.WithTTL(500*time.Millisecond))
		check("with a short lease", 2, 0)
		r.link.Delay(40 * time.Millisecond)
		cycle(r, background)
		cycle(r, background)
		check("on a slow link", 4, 1) // the first does not know it yet
		r.link.Delay(0)
		cycle(r, background)
		cycle(r, background)
		check("on a fast one again", 4, 3)

		r.link.OnCommand(first("acquire", servertest.LoseReply))
		cycle(r, background)
		check("with an answer that is lost", 3, 1)
		cycle(r, background)
		check("after one that was lost", 2, 0)
		time.Sleep(10 * time.Second)
		cycle(r, background)
		check("long after one", 2, 0) // by then the connection has gone back to the pool, from which a lane takes it

		until := make(chan struct{})
		r.link.OnCommand(first("acquire", servertest.HoldReply(until)))
		c := call(background, r, "another")
		synctest.Wait()
		commands, inline = 0, 0
		cycle(r, background)
		check("while another is under way", 2, 0)
		close(until)
		release(t, got(t, c))
		shutdown(t, r.Locker)
		shutdown(t, other.Locker)
	})
}

// With a server that is silent, calls whose command is run by the caller return within their context all the same: with its
// deadline, and a quarter of a second after its cancellation.
func TestInlineCallsReturnWithASilentServer(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		what             string
		deadline, cancel time.Duration
		limit            time.Duration
	}{
		{"Acquire", 300 * time.Millisecond, 0, 300 * time.Millisecond},
		{"Acquire", 0, 100 * time.Millisecond, 250 * time.Millisecond}, // without either it goes on for as long as a lease
		{"TryAcquire", 300 * time.Millisecond, 0, 300 * time.Millisecond},
		{"TryAcquire", 0, 100 * time.Millisecond, 250 * time.Millisecond},
		{"TryAcquire", 0, 0, second},
		{"Release", 300 * time.Millisecond, 0, 300 * time.Millisecond},
		{"Release", 0, 100 * time.Millisecond, 250 * time.Millisecond},
		{"Release", 0, 0, 5 * second},
	} {
		inlined(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			lock := acquire(t, r.Locker, "held")
			r.link.CutDown()
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			if c.deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			if c.cancel > 0 {
				time.AfterFunc(c.cancel, cancel)
			}
			begin := time.Now()
			var err error
			switch c.what {
			case "Acquire":
				_, err = r.Acquire(ctx, "k")
			case "TryAcquire":
				_, err = r.TryAcquire(ctx, "k")
			case "Release":
				err = lock.Release(ctx)
			}
			wantIs(t, err, holdfast.ErrUnavailable)
			lasted(t, begin, 0, c.limit)
			r.link.Heal()
			if c.what != "Release" {
				release(t, lock)
			}
			time.Sleep(time.Minute)
			unheld(t, b, "k")
			unheld(t, b, "held")
		})
	}
}

// The answer to a command that its caller runs is lost: the next look gets the lock, with the same token, and a release that
// is sent again says what became of the first.
func TestInlineAnswersThatAreLost(t *testing.T) {
	for _, fault := range []servertest.Verdict{servertest.LoseReply, servertest.LoseReplyAndClose, servertest.LoseRequest} {
		inlined(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			r.link.OnCommand(first("acquire", fault))
			lock := await(t, r.Locker, "k")
			notLate(t, b, lock)
			time.Sleep(20 * time.Second) // and callers run their commands again
			r.link.OnCommand(first("forget", fault))
			release(t, lock)
			shutdown(t, r.Locker)
			unheld(t, b, "k")
		})
	}
}

// Shutdown waits for a command that its caller runs, no longer than that may take.
func TestInlineShutdown(t *testing.T) {
	inlined(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		r.link.CutDown()
		began := time.Now()
		c := call(background, r, "k")
		time.AfterFunc(time.Second, r.link.Heal)
		_ = r.Shutdown(background)
		res := <-c
		wantIs(t, res.err, holdfast.ErrClosed)
		if d := res.at.Sub(began); d > 250*time.Millisecond {
			t.Errorf("the caller was told after %v", d)
		}
	})
}

// A hook may look at a command, and at its context, when that is long over.
func TestHookMayKeepACommand(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		type hookKey struct{}
		var all sync.WaitGroup
		r.rdb.AddHook(hook{one: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			look := func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("panic %v", p)
					}
				}()
				if v := ctx.Value(hookKey{}); v != "v" || len(cmd.Args()) == 0 || cmd.Args()[0] == nil {
					t.Errorf("value %v, args %v", v, cmd.Args())
				}
			}
			all.Go(look)
			all.Go(func() { time.Sleep(time.Minute); look() })
			return err
		}})
		ctx := context.WithValue(background, hookKey{}, "v")
		for range 50 {
			must(t, r.Do(ctx, "k", func(context.Context) error { return nil }))
		}
		all.Wait()
	})
}

// A hook that panics, as go-redis does at some replies, fails its command, and whether that was carried out is not known. It
// does not end the program.
func TestHookThatPanics(t *testing.T) {
	for _, when := range []string{"forget", "acquire"} {
		inlined(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			time.Sleep(time.Second)
			var n atomic.Int64
			r.rdb.AddHook(hook{one: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				err := next(ctx, cmd)
				if kind(argsOf(cmd)) == when && n.Add(1) == 1 {
					panic("hook")
				}
				return err
			}})
			time.Sleep(2 * time.Second) // for a connection that has the hook
			under := holdfast.Under(r.Locker)
			release(t, await(t, r.Locker, "k")) // which asks again
			time.Sleep(2 * time.Second)
			if now := holdfast.Under(r.Locker); now != under || n.Load() == 0 {
				t.Errorf("%s: %d under way, want %d; %d panics", when, now, under, n.Load())
			}
			unheld(t, b, "k")
		})
	}
}

// A resent TryAcquire, of a client that can be interrupted or cannot, keeps to the time of the call.
func TestInlineTryAcquireKeepsItsTime(t *testing.T) {
	for _, start := range []func(*testing.T, func(*testing.T, *servertest.Bubble, *replica), ...holdfast.Option){inlined, solo} {
		start(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			time.Sleep(time.Second)
			var n atomic.Int64
			r.link.OnCommand(func(args []string) servertest.Verdict {
				if kind(args) != "acquire" {
					return servertest.Pass
				}
				if n.Add(1) == 1 {
					time.AfterFunc(200*time.Millisecond, r.link.Reset)
				}
				return servertest.HoldReply(nil)
			})
			begin := time.Now()
			_, err := r.TryAcquire(background, "k", holdfast.WithTTL(time.Second))
			wantIs(t, err, holdfast.ErrUnavailable)
			lasted(t, begin, 0, 250*time.Millisecond)
			r.link.OnCommand(nil)
			r.link.Reset()
			time.Sleep(time.Minute)
		})
	}
}

// With timeouts of -2 go-redis sets no deadline on a connection, whatever the context says.
func TestInlineNotWithoutDeadlines(t *testing.T) {
	for _, can := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newClient(t, b, func(o *redis.Options) { o.ContextTimeoutEnabled = can; o.ReadTimeout = -2; o.WriteTimeout = -2 })
			warm(t, r)
			time.Sleep(time.Second)
			r.link.CutDown()
			time.AfterFunc(30*time.Second, r.link.Heal)
			ctx := bounded(t, 500*time.Millisecond)
			begin := time.Now()
			_, _ = r.Acquire(ctx, "k")
			lasted(t, begin, 0, 500*time.Millisecond)
			time.Sleep(2 * time.Minute)
			shutdown(t, r.Locker)
		})
	}
}

// Where go-redis fails for want of connections instead of waiting, holdfast does not ask for more.
func TestLanesLeaveConnections(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newClient(t, b, func(o *redis.Options) { o.PoolSize = 40; o.MaxActiveConns = 10 })
		warm(t, r)
		r.link.Delay(500 * time.Microsecond)
		for range 1000 {
			release(t, acquire(t, r.Locker, "w"))
		}
		var all sync.WaitGroup
		failures := &reported{}
		for i := range 100 {
			all.Go(func() {
				lock, err := r.TryAcquire(background, fmt.Sprint("k", i), holdfast.WithTrace(failures.trace()))
				if err != nil {
					t.Error(err)
					return
				}
				_ = lock.Release(background)
			})
		}
		all.Wait()
		if all := failures.all(); len(all) > 0 {
			t.Errorf("%d commands failed, such as with %v", len(all), all[0])
		}
		if n := r.rdb.PoolStats().TotalConns; n < 2 || n > 7 {
			t.Errorf("%d connections of 10, want several, and a quarter left to others", n)
		}
		time.Sleep(time.Minute)
		shutdown(t, r.Locker)
	})
}

// inlined is solo with a client that lets callers run their commands.
func inlined(t *testing.T, fn func(*testing.T, *servertest.Bubble, *replica), _ ...holdfast.Option) {
	t.Helper()
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newInline(t, b)
		warm(t, r)
		fn(t, b, r)
		shutdown(t, r.Locker)
	})
}
