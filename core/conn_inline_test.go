package holdfast_test

import (
	"context"
	"fmt"
	"runtime"
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

// stacks notes, at each command, whether it runs on a goroutine of the test's function that is named so.
type stacks struct {
	caller string

	mu     sync.Mutex
	inline []bool
}

func (s *stacks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *stacks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			text := make([]byte, 1<<16)
			text = text[:runtime.Stack(text, false)]
			s.mu.Lock()
			s.inline = append(s.inline, strings.Contains(string(text), s.caller))
			s.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (s *stacks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *stacks) take() (n, inline int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, on := range s.inline {
		if on {
			inline++
		}
	}
	n, s.inline = len(s.inline), nil
	return n, inline
}

// A command runs on its caller's goroutine, where the client's hooks see it, if the client can be interrupted, no other
// command is under way, the context leaves time, and the link is none on which that takes long.
func TestInlineCommands(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newInline(t, b), newReplica(t, b)
		seen := &stacks{caller: "TestInlineCommands"}
		r.rdb.AddHook(seen)
		other.rdb.AddHook(seen)
		cycle := func(r *replica, ctx context.Context, opts ...holdfast.CallOption) {
			t.Helper()
			synctest.Wait() // a lane answers before it is free
			lock, err := r.Acquire(ctx, "k", opts...)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := lock.Release(ctx); err != nil {
				t.Fatal(err)
			}
		}
		check := func(what string, n, inline int) {
			t.Helper()
			if a, b := seen.take(); a != n || b != inline {
				t.Errorf("%s: %d of %d commands by their callers, want %d of %d", what, b, a, inline, n)
			}
		}
		warm(t, r)
		warm(t, other)
		seen.take()
		cycle(r, background)
		check("alone", 2, 2)
		cycle(other, background)
		check("by a client that cannot be interrupted", 2, 0)
		short, cancel := context.WithTimeout(background, 200*time.Millisecond)
		defer cancel()
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
		check("long after one", 2, 2)

		until := make(chan struct{})
		r.link.OnCommand(first("acquire", servertest.HoldReply(until)))
		c := call(background, r, "another")
		synctest.Wait()
		seen.take()
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
	for _, how := range []string{"deadline", "cancel", "nothing"} {
		for _, what := range []string{"Acquire", "TryAcquire", "Release"} {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newInline(t, b)
				warm(t, r)
				lock := acquire(t, r.Locker, "held")
				r.link.CutDown()
				const patience = 100 * time.Millisecond
				ctx, limit := background, time.Second
				switch how {
				case "deadline":
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(background, 300*time.Millisecond)
					defer cancel()
					limit = 300 * time.Millisecond
				case "cancel":
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(background)
					time.AfterFunc(patience, cancel)
					limit = 250 * time.Millisecond
				case "nothing":
					if what == "Acquire" {
						return // it goes on for as long as a lease
					}
					if what == "Release" {
						limit = 5 * time.Second
					}
				}
				began := time.Now()
				var err error
				switch what {
				case "Acquire":
					_, err = r.Acquire(ctx, "k")
				case "TryAcquire":
					_, err = r.TryAcquire(ctx, "k")
				case "Release":
					err = lock.Release(ctx)
				}
				wantIs(t, err, holdfast.ErrUnavailable)
				if took := time.Since(began); took > limit {
					t.Errorf("%s, %s: took %v, want at most %v", what, how, took, limit)
				}
				r.link.Heal()
				if what != "Release" {
					release(t, lock)
				}
				time.Sleep(time.Minute)
				shutdown(t, r.Locker)
				if b.Redis.Exists("k") || b.Redis.Exists("held") {
					t.Error("a key is left")
				}
			})
		}
	}
}

// The answer to a command that its caller runs is lost: the next look gets the lock, with the same token, and a release that
// is sent again says what became of the first.
func TestInlineAnswersThatAreLost(t *testing.T) {
	for _, fault := range []servertest.Verdict{servertest.LoseReply, servertest.LoseReplyAndClose, servertest.LoseRequest} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newInline(t, b)
			warm(t, r)
			r.link.OnCommand(first("acquire", fault))
			lock, err := r.Acquire(background, "k")
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := b.Redis.Get("k"); got != holdfast.Owner(lock) {
				t.Errorf("held as %q, want %q", got, holdfast.Owner(lock))
			}
			time.Sleep(20 * time.Second) // and callers run their commands again
			r.link.OnCommand(first("forget", fault))
			release(t, lock)
			shutdown(t, r.Locker)
			if b.Redis.Exists("k") {
				t.Error("the key is left")
			}
		})
	}
}

// Shutdown waits for a command that its caller runs, no longer than that may take.
func TestInlineShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newInline(t, b)
		warm(t, r)
		r.link.CutDown()
		began := time.Now()
		c := call(background, r, "k")
		synctest.Wait()
		go func() { time.Sleep(time.Second); r.link.Heal() }()
		_ = r.Shutdown(background)
		res := <-c
		wantIs(t, res.err, holdfast.ErrClosed)
		if d := res.at.Sub(began); d > 250*time.Millisecond {
			t.Errorf("the caller was told after %v", d)
		}
	})
}

// procHook is a client's hook of commands alone.
type procHook func(next redis.ProcessHook) redis.ProcessHook

func (procHook) DialHook(next redis.DialHook) redis.DialHook            { return next }
func (h procHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return h(next) }
func (procHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

type hookKey struct{}

// A hook may look at the context of a command when that is long over, and so at the command.
func TestHookMayKeepTheContextOfACommand(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		var mu sync.Mutex
		var ctxs []context.Context
		r.rdb.AddHook(procHook(func(next redis.ProcessHook) redis.ProcessHook {
			return func(ctx context.Context, cmd redis.Cmder) error {
				mu.Lock()
				ctxs = append(ctxs, ctx)
				mu.Unlock()
				return next(ctx, cmd)
			}
		}))
		ctx, cancel := context.WithCancel(context.WithValue(background, hookKey{}, "v"))
		defer cancel()
		lock, err := r.Acquire(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, c := range ctxs {
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("ctx kept by a hook: panic %v", p)
					}
				}()
				if v := c.Value(hookKey{}); v != "v" {
					t.Errorf("value %v", v)
				}
			}()
		}
		shutdown(t, r.Locker)
	})
}

func TestHookMayKeepACommand(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		var wg sync.WaitGroup
		r.rdb.AddHook(procHook(func(next redis.ProcessHook) redis.ProcessHook {
			return func(ctx context.Context, cmd redis.Cmder) error {
				err := next(ctx, cmd)
				wg.Add(1)
				go func() {
					defer wg.Done()
					if len(cmd.Args()) == 0 {
						t.Errorf("args are gone")
					} else if cmd.Args()[0] == nil {
						t.Error("args nil")
					}
				}()
				return err
			}
		}))
		for range 50 {
			lock, err := r.Acquire(background, "k")
			if err != nil {
				t.Fatal(err)
			}
			if err := lock.Release(background); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		shutdown(t, r.Locker)
	})
}

// A hook that panics in a command that its caller runs leaves nothing behind, where somebody recovers: whether the command was
// carried out is not known.
func TestInlineHookThatPanics(t *testing.T) {
	for _, when := range []string{"forget", "acquire"} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newInline(t, b)
			warm(t, r)
			time.Sleep(time.Second)
			var n atomic.Int64
			r.rdb.AddHook(procHook(func(next redis.ProcessHook) redis.ProcessHook {
				return func(ctx context.Context, cmd redis.Cmder) error {
					err := next(ctx, cmd)
					var args []string
					for _, a := range cmd.Args() {
						if s, ok := a.(string); ok {
							args = append(args, s)
						} else {
							args = append(args, "")
						}
					}
					if holdfast.ScriptName(args) == when && n.Add(1) == 1 {
						panic("hook")
					}
					return err
				}
			}))
			under := holdfast.Under(r.Locker)
			panics(t, func() {
				l, err := r.Acquire(background, "k")
				if err != nil {
					t.Error(err)
					return
				}
				_ = l.Release(background)
			})
			synctest.Wait()
			time.Sleep(2 * time.Second)
			if n := holdfast.Under(r.Locker); n != under {
				t.Errorf("%s: %d under way, want %d", when, n, under)
			}
			if b.Redis.Exists("k") {
				t.Errorf("%s: the lock stays in Redis", when)
			}
			ctx, cancel := context.WithTimeout(background, time.Minute)
			defer cancel()
			if err := r.Shutdown(ctx); err != nil {
				t.Errorf("%s: shutdown: %v", when, err)
			}
		})
	}
}

func TestInlineTryAcquireKeepsItsTime(t *testing.T) {
	for _, inl := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			if inl {
				r = newInline(t, b)
			}
			warm(t, r)
			time.Sleep(time.Second)
			var n atomic.Int64
			r.link.OnCommand(func(args []string) servertest.Verdict {
				if kind(args) != "acquire" {
					return servertest.Pass
				}
				if n.Add(1) == 1 {
					go func() { time.Sleep(200 * time.Millisecond); r.link.Reset() }()
				}
				return servertest.HoldReply(nil)
			})
			began := time.Now()
			_, err := r.TryAcquire(background, "k", holdfast.WithTTL(time.Second))
			took := time.Since(began)
			wantIs(t, err, holdfast.ErrUnavailable)
			if took > 250*time.Millisecond {
				t.Errorf("inline %v: TryAcquire took %v, want at most 250ms", inl, took)
			}
			r.link.OnCommand(nil)
			r.link.Reset()
			time.Sleep(time.Minute)
			shutdown(t, r.Locker)
		})
	}
}

// With timeouts of -2 go-redis sets no deadline on a connection, whatever the context says.
func TestInlineNotWithoutDeadlines(t *testing.T) {
	for _, inl := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rdb := b.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = inl; o.ReadTimeout = -2; o.WriteTimeout = -2 })
			r := &replica{newLocker(t, rdb), rdb, b.Link(rdb)}
			warm(t, r)
			time.Sleep(time.Second)
			r.link.CutDown()
			go func() { time.Sleep(30 * time.Second); r.link.Heal() }()
			ctx, cancel := context.WithTimeout(background, 500*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := r.Acquire(ctx, "k")
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("inline %v: Acquire took %v with a deadline of 500ms: %v", inl, took, err)
			}
			time.Sleep(2 * time.Minute)
			shutdown(t, r.Locker)
		})
	}
}

// Where go-redis fails for want of connections instead of waiting, holdfast does not ask for more.
func TestLanesLeaveConnections(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb := b.Client(func(o *redis.Options) { o.PoolSize = 40; o.MaxActiveConns = 10 })
		r := &replica{newLocker(t, rdb), rdb, b.Link(rdb)}
		warm(t, r)
		r.link.Delay(500 * time.Microsecond)
		for range 1000 {
			release(t, acquire(t, r.Locker, "w"))
		}
		var all sync.WaitGroup
		var failed, node atomic.Int64
		var sample atomic.Value
		for i := range 100 {
			all.Go(func() {
				lk, err := r.TryAcquire(background, fmt.Sprint("k", i), holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) { node.Add(1); sample.CompareAndSwap(nil, e.Err) }}))
				if err != nil {
					failed.Add(1)
					return
				}
				_ = lk.Release(background)
			})
		}
		all.Wait()
		if failed.Load() > 0 || node.Load() > 0 {
			t.Errorf("%d calls failed, and %d commands, such as with %v", failed.Load(), node.Load(), sample.Load())
		}
		if n := rdb.PoolStats().TotalConns; n < 2 || n > 7 {
			t.Errorf("%d connections of 10, want several, and a quarter left to others", n)
		}
		time.Sleep(time.Minute)
		shutdown(t, r.Locker)
	})
}
