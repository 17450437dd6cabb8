package core_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
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
		cycle := func(r *replica, ctx context.Context, opts ...core.CallOption) {
			t.Helper()
			lock, err := r.Acquire(ctx, "k", opts...)
			if err != nil {
				t.Fatal(err)
			}
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
		cycle(r, background, core.WithTTL(500*time.Millisecond))
		check("with a short lease", 2, 0)
		r.link.Delay(40 * time.Millisecond)
		cycle(r, background)
		cycle(r, background)
		check("on a slow link", 4, 1) // the first does not know it yet
		r.link.Delay(0)
		cycle(r, background)
		cycle(r, background)
		check("on a fast one again", 4, 3)

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
				wantIs(t, err, core.ErrUnavailable)
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
			if got, _ := b.Redis.Get("k"); got != core.Owner(lock) {
				t.Errorf("held as %q, want %q", got, core.Owner(lock))
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
		wantIs(t, res.err, core.ErrClosed)
		if d := res.at.Sub(began); d > 250*time.Millisecond {
			t.Errorf("the caller was told after %v", d)
		}
	})
}
