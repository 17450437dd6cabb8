package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestTraceTellsTheStoryOfALock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var log logged
		r := newReplica(t, b, holdfast.WithLabel("api-1"), log.trace(&slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "token" {
				return slog.Attr{}
			}
			return a
		}}))
		c := newReplica(t, b, holdfast.WithLabel("api-2"))
		first := acquire(t, c.Locker, "k")
		time.AfterFunc(time.Second, func() { release(t, first) })
		lock, err := r.Acquire(background, "k")
		must(t, err)
		time.Sleep(5*time.Second + time.Millisecond)
		release(t, lock)
		lost := acquire(t, r.Locker, "lost")
		b.Redis.Del("lost")
		time.Sleep(5*time.Second + time.Millisecond)
		_ = lost.Release(background)
		time.Sleep(time.Second)
		r.link.Refuse(errRefused)
		r.link.Reset()
		_, _ = r.TryAcquire(background, "down")

		rest := log.String()
		for _, line := range []string{
			`level=DEBUG msg="holdfast: waiting" key=k label=api-2 left=15s`,
			`level=DEBUG msg="holdfast: acquired" key=k label=api-1 elapsed=1`,
			`level=DEBUG msg="holdfast: renewed" key=k left=1`,
			`level=DEBUG msg="holdfast: released" key=k elapsed=5`,
			`level=WARN msg="holdfast: lost" key=lost elapsed=5s err="holdfast: hold`,
			`level=WARN msg="holdfast: redis error" key=`,
		} {
			i := strings.Index(rest, line)
			if i < 0 {
				t.Fatalf("no %q in\n%s", line, &log)
			}
			rest = rest[i:]
		}
	})
}

// However a lock is lost, that is one warning, and the error says so to an adapter.
func TestLogTraceHasOneWarningForALoss(t *testing.T) {
	for name, loses := range map[string]struct {
		opts []holdfast.CallOption
		lose func(b *servertest.Bubble, l *holdfast.Locker)
	}{
		"a renewal finds it":       {nil, func(b *servertest.Bubble, _ *holdfast.Locker) { b.Redis.Del("k"); time.Sleep(6 * time.Second) }},
		"the release finds it":     {nil, func(b *servertest.Bubble, _ *holdfast.Locker) { b.Redis.Del("k") }},
		"it was held too long":     {[]holdfast.CallOption{holdfast.WithMaxHold(20 * time.Second)}, func(*servertest.Bubble, *holdfast.Locker) { time.Sleep(21 * time.Second) }},
		"it expired":               {[]holdfast.CallOption{holdfast.WithoutRenewal()}, func(*servertest.Bubble, *holdfast.Locker) { time.Sleep(16 * time.Second) }},
		"the Locker was shut down": {nil, func(_ *servertest.Bubble, l *holdfast.Locker) { _ = l.Shutdown(ended) }},
	} {
		for _, traced := range []bool{true, false} {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				var log logged
				opts := []holdfast.Option{holdfast.WithTrace(&holdfast.Trace{})}
				if traced {
					opts = append(opts, log.trace(nil))
				}
				r := newReplica(t, b, opts...)
				var inside error
				err := r.Do(background, "k", func(ctx context.Context) error {
					loses.lose(b, r.Locker)
					inside = holdfast.Err(ctx)
					return nil
				}, loses.opts...)
				synctest.Wait()
				for _, err := range []error{inside, err} {
					var e interface{ Logged() bool }
					if err != nil && (!errors.As(err, &e) || e.Logged() != traced) {
						t.Errorf("%s: %v does not say whether it was logged, which is %v", name, err, traced)
					}
				}
				if n := strings.Count(log.String(), "\n"); traced && n != 1 || inside == nil && err == nil {
					t.Errorf("%s: got %v, %v, and %d lines\n%s", name, inside, err, n, &log)
				}
			})
		}
	}
}

// An outage is one warning for each node, however many renewals it costs, and so is the next one.
func TestLogTraceInAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var log logged
		r := newReplica(t, b, log.trace(nil), holdfast.WithTTL(time.Minute))
		var locks []*holdfast.Lock
		for i := range 20 {
			locks = append(locks, acquire(t, r.Locker, fmt.Sprint("k", i)))
		}
		for outage := 1; outage <= 2; outage++ {
			r.link.Refuse(errRefused)
			r.link.Reset()
			time.Sleep(30 * time.Second)
			r.link.Refuse(nil)
			time.Sleep(2 * time.Minute)
			if n := strings.Count(log.String(), "redis error"); n != outage {
				t.Errorf("%d warnings in %d outages:\n%s", n, outage, &log)
			}
		}
		for _, lock := range locks {
			release(t, lock)
		}
	})
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		var log logged
		v := ms.voter(t, log.trace(nil), redlock.WithQuarantine(0))
		each(v.links[:2], func(l *servertest.Link) { l.Refuse(errRefused); l.Reset() })
		for i := range 5 {
			_, _ = v.TryAcquire(background, fmt.Sprint("k", i))
		}
		for i := range 2 {
			if n := strings.Count(log.String(), "node="+ms[i].Client().Options().Addr); n != 1 {
				t.Errorf("%d warnings of master %d:\n%s", n, i, &log)
			}
		}
	})
}

// Without a logger it is the default one, as of the moment of the event.
func TestLogTraceWithoutALogger(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		trace := holdfast.LogTrace(nil)
		var out strings.Builder
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		defer slog.SetDefault(before)
		release(t, acquire(t, newReplica(t, b, holdfast.WithTrace(trace)).Locker, "k"))
		if !strings.Contains(out.String(), "holdfast: acquired") {
			t.Errorf("got %q", out.String())
		}
	})
}

// logged collects what is logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) trace(opts *slog.HandlerOptions) holdfast.CallOption {
	return holdfast.WithTrace(holdfast.LogTrace(slog.New(slog.NewTextHandler(l, opts))))
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// story notes what a Trace hears of waits and ends, in order.
type story struct {
	mu     sync.Mutex
	events []string
	errs   []error
}

func (s *story) trace() holdfast.CallOption {
	note := func(what string) func(holdfast.Event) {
		return func(e holdfast.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			event := what + " " + e.Key
			if e.Waited {
				event += ", had waited"
			}
			s.events, s.errs = append(s.events, event), append(s.errs, e.Err)
		}
	}
	return holdfast.WithTrace(&holdfast.Trace{Waiting: note("waiting"), Acquired: note("acquired"), Refused: note("refused"), Ended: note("ended")})
}

func TestTraceTellsHowEachCallEnds(t *testing.T) {
	boom := func(holdfast.Event) { panic("a hook") }
	for name, c := range map[string]struct {
		do   func(t *testing.T, b *servertest.Bubble, r *replica, held *holdfast.Lock, s *story)
		want []string
		err  error // of the last event
	}{
		"a try": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			_, _ = r.TryAcquire(background, "k", s.trace())
		}, []string{"refused k"}, holdfast.ErrNotAcquired},
		"WithWait": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			_, _ = r.Acquire(background, "k", s.trace(), holdfast.WithWait(time.Second))
		}, []string{"waiting k", "refused k, had waited"}, holdfast.ErrNotAcquired},
		"behind a call of the process": {func(t *testing.T, _ *servertest.Bubble, r *replica, held *holdfast.Lock, s *story) {
			ctx, cancel := context.WithCancel(background)
			first, second := call(background, r, "k"), call(ctx, r, "k", s.trace())
			cancel()
			<-second
			release(t, held)
			release(t, got(t, first))
		}, []string{"waiting k", "refused k, had waited"}, context.Canceled},
		"the last look behind the front": {func(t *testing.T, _ *servertest.Bubble, r *replica, held *holdfast.Lock, s *story) {
			first := call(background, r, "k")
			_, _ = r.Acquire(background, "k", s.trace(), holdfast.WithWait(time.Second))
			release(t, held)
			release(t, got(t, first))
		}, []string{"waiting k", "refused k, had waited"}, holdfast.ErrNotAcquired},
		"a hand-over": {func(t *testing.T, _ *servertest.Bubble, r *replica, held *holdfast.Lock, s *story) {
			first, second := call(background, r, "k"), call(background, r, "k", s.trace())
			release(t, held)
			release(t, got(t, first))
			release(t, got(t, second))
		}, []string{"waiting k", "acquired k, had waited", "ended k"}, nil},
		"Shutdown": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			waits := call(background, r, "k", s.trace())
			must(t, r.Shutdown(background))
			<-waits
			_, _ = r.TryAcquire(background, "free", s.trace())
		}, []string{"waiting k", "refused k, had waited", "refused free"}, holdfast.ErrClosed},
		"an outage": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			r.link.Refuse(errRefused)
			r.link.Reset()
			_, _ = r.TryAcquire(background, "k", s.trace())
		}, []string{"refused k"}, holdfast.ErrUnavailable},
		"a self-deadlock": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			_ = r.Do(background, "own", func(ctx context.Context) error { _, err := r.Acquire(ctx, "own", s.trace()); return err })
		}, []string{"refused own"}, holdfast.ErrSelfDeadlock},
		"a nested handle": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			fine(t, r.Do(background, "own", func(ctx context.Context) error {
				lock, err := r.Acquire(ctx, "own", s.trace(), holdfast.WithReentrancy())
				must(t, err)
				return lock.Release(ctx)
			}))
		}, nil, nil},
		"Lead": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			_ = r.Lead(ctx, "k", func(context.Context) error { return nil }, s.trace())
		}, []string{"waiting k", "refused k, had waited"}, context.DeadlineExceeded},
		"DoAll without a wait": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			_ = r.DoAll(background, []string{"k", "l"}, func(context.Context) error { return nil }, s.trace(), holdfast.WithWait(0))
			synctest.Wait()
		}, []string{"acquired l", "refused k", "ended l"}, nil},
		"DoAll that waits": {func(t *testing.T, _ *servertest.Bubble, r *replica, held *holdfast.Lock, s *story) {
			time.AfterFunc(time.Second, func() { release(t, held) })
			_ = r.DoAll(background, []string{"j", "k"}, func(context.Context) error { return nil }, s.trace())
		}, []string{"acquired j", "waiting k", "acquired k, had waited", "ended j", "ended k"}, nil},
		"DoAll that waits in vain": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			_ = r.DoAll(background, []string{"j", "k"}, func(context.Context) error { return nil }, s.trace(), holdfast.WithWait(time.Second))
		}, []string{"acquired j", "waiting k", "refused k, had waited", "ended j"}, nil},
		"another trace's hook panics in the wait": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			panics(t, func() {
				_, _ = r.Acquire(background, "k", holdfast.WithTrace(&holdfast.Trace{Waiting: boom}), s.trace())
			})
		}, []string{"waiting k", "refused k, had waited"}, holdfast.ErrUnavailable},
		"another trace's hook panics after it": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			panics(t, func() {
				_, _ = r.Acquire(background, "free", holdfast.WithTrace(&holdfast.Trace{Acquired: boom}), s.trace())
			})
		}, []string{"acquired free", "ended free"}, nil},
		"another trace's hook panics in the release": {func(t *testing.T, _ *servertest.Bubble, r *replica, _ *holdfast.Lock, s *story) {
			lock := acquire(t, r.Locker, "free", holdfast.WithTrace(&holdfast.Trace{NodeError: boom}), s.trace())
			r.link.CutUp()
			panics(t, func() { _ = lock.Release(ended) })
			r.link.Heal()
		}, []string{"acquired free", "ended free"}, holdfast.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r, other := newReplica(t, b), newReplica(t, b)
				held := acquire(t, other.Locker, "k")
				if strings.Contains(name, "hand-over") { // only calls that stand in a row
					release(t, held)
					held = acquire(t, r.Locker, "k")
				}
				var s story
				c.do(t, b, r, held, &s)
				_ = held.Release(background)
				synctest.Wait()
				sorted := s.events
				if strings.HasPrefix(name, "DoAll") { // several at once
					sorted, c.want = slices.Sorted(slices.Values(s.events)), slices.Sorted(slices.Values(c.want))
				}
				if !slices.Equal(sorted, c.want) {
					t.Fatalf("got %q, want %q", sorted, c.want)
				}
				if len(s.errs) > 0 && c.err != nil && !errors.Is(s.errs[len(s.errs)-1], c.err) {
					t.Errorf("the last error is %v, want %v", s.errs[len(s.errs)-1], c.err)
				}
			})
		})
	}
}
