package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

var passing = holdfast.WithReleaseInBackground()

// endings collects what became of releases.
type endings struct {
	mu     sync.Mutex
	events []holdfast.Event
	nodes  int // failures
}

func (e *endings) trace() holdfast.CallOption {
	return holdfast.WithTrace(&holdfast.Trace{
		Released: func(ev holdfast.Event) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.events = append(e.events, ev)
		},
		NodeError: func(holdfast.Event) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.nodes++
		},
	})
}

// one is the only one there is.
func (e *endings) one(t *testing.T) holdfast.Event {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.events) != 1 {
		t.Fatalf("Released was told %d times, want once: %v", len(e.events), e.events)
	}
	return e.events[0]
}

// none checks that nothing is known yet.
func (e *endings) none(t *testing.T) {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.events) > 0 {
		t.Fatalf("Released was told already: %v", e.events)
	}
}

// releaseAtOnce releases a lock that was not lost, without a wait.
func releaseAtOnce(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	began := time.Now()
	release(t, lock)
	if d := time.Since(began); d != 0 {
		t.Errorf("Release took %v", d)
	}
	if lock.Err() == nil || !isDone(lock.Context(background)) {
		t.Errorf("held after Release: %v", lock.Err())
	}
}

// Release makes no round trip; the lock is free, and Trace told, when the command has arrived and been answered.
func TestReleaseInBackgroundDoesNotWait(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *servertest.Bubble, ...holdfast.Option) *replica{"lanes": newReplica, "inline": newInline} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := start(t, b)
				warm(t, r)
				b.ResetCommands()
				var told endings
				lock := acquire(t, r.Locker, "k", passing, told.trace())
				time.Sleep(time.Second)
				until := make(chan struct{})
				r.link.OnCommand(first("forget", servertest.HoldReply(until)))
				ctx, cancel := context.WithCancel(background)
				releaseAtOnce(t, lock)
				cancel()
				if err := lock.Release(ctx); err != nil {
					t.Errorf("again: %v", err)
				}
				told.none(t)
				if b.Redis.Exists("k") {
					t.Error("the command has not arrived")
				}
				time.Sleep(500 * time.Millisecond)
				close(until)
				if e := told.one(t); e.Err != nil || e.Elapsed != time.Second || e.Token != lock.Token() || e.Key != "k" {
					t.Errorf("Released: %+v", e)
				}
				if n := b.Commands().Total(); n != 2 {
					t.Errorf("%d commands for a cycle, want 2", n)
				}
				// With an ended context it is the same.
				lock = acquire(t, r.Locker, "k", passing)
				if err := lock.Release(ended); err != nil {
					t.Error(err)
				}
				empty(t, b, r)
			})
		})
	}
}

// The error of Do is that of its function.
func TestReleaseInBackgroundOfDo(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		r.link.Delay(100 * time.Millisecond)
		var told endings
		var through time.Time
		oops := errors.New("oops")
		err := r.Do(background, "k", func(context.Context) error {
			b.Redis.Del("k")
			through = time.Now()
			return oops
		}, passing, told.trace())
		if err != oops || !time.Now().Equal(through) {
			t.Errorf("%v, %v after its function", err, time.Since(through))
		}
		told.none(t)
		time.Sleep(time.Second)
		wantIs(t, told.one(t).Err, holdfast.ErrLost)
		empty(t, b, r)
	})
}

// A call that comes after Release goes behind the release, however long that is on its way: it does not find the lock
// held, and asks once.
func TestReleaseInBackgroundIsInFrontOfTheNextCall(t *testing.T) {
	for name, opts := range map[string][]holdfast.Option{
		"plain":       nil,
		"no handover": {holdfast.WithLocalHandover(0, 0)},
		"short lease": {holdfast.WithTTL(2 * time.Second)},
		"two masters": nil, // stands for several, below
	} {
		for what, call := range map[string]struct {
			try  bool
			opts []holdfast.CallOption
		}{
			"Acquire":        {},
			"no wait":        {opts: []holdfast.CallOption{holdfast.WithWait(0)}},
			"TryAcquire":     {try: true},
			"re-entry":       {opts: []holdfast.CallOption{holdfast.WithReentryID("id")}},
			"re-entry, try":  {try: true, opts: []holdfast.CallOption{holdfast.WithReentryID("id")}},
			"other options":  {opts: []holdfast.CallOption{holdfast.WithLabel("other"), holdfast.WithoutRenewal(), holdfast.WithReentrancy()}},
			"with the trace": {opts: []holdfast.CallOption{holdfast.WithTrace(&holdfast.Trace{Released: func(holdfast.Event) {}})}},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				take := func(l *holdfast.Locker, want time.Duration) *holdfast.Lock {
					t.Helper()
					began, f := time.Now(), l.Acquire
					if call.try {
						f = l.TryAcquire
					}
					lock, err := f(background, "k", append(call.opts, passing)...)
					if err != nil {
						t.Fatal(err)
					}
					if d := time.Since(began); d != want {
						t.Errorf("it took %v, want %v", d, want)
					}
					return lock
				}
				if name == "two masters" {
					if strings.HasPrefix(what, "re-entry") {
						t.Skip("needs one Redis")
					}
					bubbleOf(t, 3, func(t *testing.T, ms masters) {
						v := ms.voter(t)
						releaseAll(t, acquire(t, v.Locker, "k"))
						lock := take(v.Locker, 0)
						time.Sleep(time.Second)
						until := make(chan struct{})
						each(v.links, func(l *servertest.Link) { l.OnCommand(first("yield", servertest.HoldRequest(until))) })
						releaseAtOnce(t, lock)
						time.AfterFunc(150*time.Millisecond, func() { close(until) })
						next := take(v.Locker, 150*time.Millisecond)
						if next.Token() <= lock.Token() {
							t.Errorf("token %d after %d", next.Token(), lock.Token())
						}
						time.Sleep(time.Second)
						releaseAtOnce(t, next)
						time.Sleep(time.Second)
						if n := ms.having("k"); n != 0 {
							t.Errorf("on %d masters at the end", n)
						}
						shutdown(t, v.Locker)
					})
					return
				}
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					r := newReplica(t, b, opts...)
					warm(t, r)
					release(t, acquire(t, r.Locker, "warm", holdfast.WithReentryID("id")))
					b.ResetCommands()
					lock := take(r.Locker, 0)
					until := make(chan struct{})
					r.link.OnCommand(first("forget", servertest.HoldRequest(until)))
					releaseAtOnce(t, lock)
					time.AfterFunc(200*time.Millisecond, func() { close(until) })
					next := take(r.Locker, 200*time.Millisecond)
					if next.Token() <= lock.Token() {
						t.Errorf("token %d after %d", next.Token(), lock.Token())
					}
					notLate(t, b, next)
					if n := b.Commands().Total(); n != 3 {
						t.Errorf("%d commands, want 3", n)
					}
					releaseAtOnce(t, next)
					releaseAtOnce(t, take(r.Locker, 0))
					empty(t, b, r)
				})
			})
		}
	}
}

// Whatever becomes of the release on its way: it is sent again, its outcome told once, and the next call has the lock.
func TestReleaseInBackgroundThatGoesAstray(t *testing.T) {
	for name, v := range map[string]servertest.Verdict{
		"reply lost": servertest.LoseReply, "reply lost, closed": servertest.LoseReplyAndClose,
		"request lost": servertest.LoseRequest, "request lost, closed": servertest.LoseRequestAndClose,
	} {
		for _, try := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", try ", try), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					r, other := newReplica(t, b), newReplica(t, b)
					warm(t, r)
					var told endings
					lock := acquire(t, r.Locker, "k", passing, told.trace())
					r.link.OnCommand(first("forget", v))
					releaseAtOnce(t, lock)
					time.Sleep(10 * time.Millisecond) // a try does not wait for longer than the release
					var next *holdfast.Lock
					var err error
					if try {
						next, err = r.TryAcquire(background, "k")
					} else {
						next, err = r.Acquire(background, "k")
					}
					if err != nil {
						t.Fatal(err)
					}
					if e := told.one(t); e.Err != nil || e.Elapsed != 0 {
						t.Errorf("Released: %+v", e)
					}
					if told.nodes != 0 {
						t.Errorf("%d failures were told", told.nodes)
					}
					release(t, next)
					release(t, acquire(t, other.Locker, "k"))
					empty(t, b, r, other)
				})
			})
		}
	}
}

// A first release that arrives late, after the second one and other holds, does no harm.
func TestReleaseInBackgroundThatIsLate(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		var told endings
		lock := acquire(t, r.Locker, "k", passing, told.trace())
		until := make(chan struct{})
		r.link.OnCommand(first("forget", servertest.HoldRequest(until)))
		releaseAtOnce(t, lock)
		time.Sleep(2 * time.Second)
		if e := told.one(t); e.Err != nil {
			t.Error(e.Err)
		}
		next := acquire(t, other.Locker, "k")
		close(until)
		time.Sleep(time.Second)
		if v, _ := b.Redis.Get("k"); v != holdfast.Owner(next) || next.Err() != nil {
			t.Errorf("the key has %q, want that of the later hold: %v", v, next.Err())
		}
		release(t, next)
		told.one(t)
		empty(t, b, r, other)
	})
}

// With a server that is silent the next call ends as it does without the option, at the same moment.
func TestReleaseInBackgroundWithASilentServer(t *testing.T) {
	type outcome struct {
		took time.Duration
		err  string
	}
	for name, opts := range map[string][]holdfast.Option{"plain": nil, "no handover": {holdfast.WithLocalHandover(0, 0)}, "short lease": {holdfast.WithTTL(800 * time.Millisecond)}} {
		for what, call := range map[string]func(*holdfast.Locker) (*holdfast.Lock, error){
			"TryAcquire": func(l *holdfast.Locker) (*holdfast.Lock, error) { return l.TryAcquire(background, "k") },
			"Acquire":    func(l *holdfast.Locker) (*holdfast.Lock, error) { return l.Acquire(background, "k") },
			"deadline": func(l *holdfast.Locker) (*holdfast.Lock, error) {
				ctx, cancel := context.WithTimeout(background, 150*time.Millisecond)
				defer cancel()
				return l.Acquire(ctx, "k")
			},
			"cancel": func(l *holdfast.Locker) (*holdfast.Lock, error) {
				ctx, cancel := context.WithCancel(background)
				time.AfterFunc(150*time.Millisecond, cancel)
				return l.TryAcquire(ctx, "k")
			},
			"wait": func(l *holdfast.Locker) (*holdfast.Lock, error) {
				return l.Acquire(background, "k", holdfast.WithWait(2*time.Second))
			},
			"short wait": func(l *holdfast.Locker) (*holdfast.Lock, error) {
				return l.Acquire(background, "k", holdfast.WithWait(time.Millisecond))
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				run := func(after bool) (o outcome) {
					bubble(t, func(t *testing.T, b *servertest.Bubble) {
						r := newReplica(t, b, opts...)
						warm(t, r)
						var told endings
						lock := acquire(t, r.Locker, "k", passing, told.trace())
						if !after {
							releaseAtOnce(t, lock)
							told.one(t)
						}
						r.link.CutUp()
						if after {
							releaseAtOnce(t, lock)
						}
						began := time.Now()
						_, err := call(r.Locker)
						o = outcome{time.Since(began), fmt.Sprint(err)}
						wantIs(t, err, holdfast.ErrUnavailable)
						time.Sleep(20 * time.Second)
						if e := told.one(t); after {
							wantIs(t, e.Err, holdfast.ErrUnavailable)
							if told.nodes != 1 {
								t.Errorf("%d failures told, want 1", told.nodes)
							}
						}
						r.link.Heal()
						r.link.Reset()
						release(t, obtain(t, r.Locker, "k"))
						empty(t, b, r)
					})
					return o
				}
				got, want := run(true), run(false)
				// The pauses of those that go on asking are random.
				random := map[string]time.Duration{"Acquire": 1250 * time.Millisecond, "wait": 500 * time.Millisecond}[what]
				if got.err != want.err || (got.took-want.took).Abs() > random {
					t.Errorf("behind a release %v\nwithout %v", got, want)
				}
			})
		}
	}
}

// A release that Redis refuses, or nobody answers, is repeated until the lease is over.
func TestReleaseInBackgroundIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(time.Minute))
		warm(t, r)
		var told endings
		lock := acquire(t, r.Locker, "k", passing, told.trace())
		r.link.Refuse(errRefused)
		r.link.Reset()
		releaseAtOnce(t, lock)
		time.Sleep(5*time.Second - time.Millisecond)
		told.none(t)
		time.Sleep(2 * time.Millisecond)
		e := told.one(t)
		wantIs(t, e.Err, holdfast.ErrUnavailable)
		if !contains(e.Err, "refused") || told.nodes != 1 {
			t.Errorf("%v, and %d failures told", e.Err, told.nodes)
		}
		r.link.Refuse(nil)
		time.Sleep(2 * time.Second)
		if b.Redis.Exists("k") {
			t.Error("not released once Redis was back")
		}
		told.one(t)
		empty(t, b, r)
	})
	bubble(t, func(t *testing.T, b *servertest.Bubble) { // for good: it is told at once
		r := newReplica(t, b)
		var told endings
		lock := acquire(t, r.Locker, "k", passing, told.trace())
		b.Redis.SetError("NOPERM no")
		releaseAtOnce(t, lock)
		wantIs(t, told.one(t).Err, holdfast.ErrUnavailable)
		b.Redis.SetError("")
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrNotAcquired)
		empty(t, b, r)
	})
}

// What the clock tells is returned, what only Redis knows is told.
func TestReleaseInBackgroundOfALostLock(t *testing.T) {
	for name, c := range map[string]struct {
		lose   func(*servertest.Bubble, *replica, *replica)
		caller bool  // learns of it
		want   error // at the end
	}{
		"deleted": {func(b *servertest.Bubble, _, _ *replica) { b.Redis.Del("k") }, false, holdfast.ErrLost},
		"flushed": {func(b *servertest.Bubble, _, _ *replica) { b.Redis.FlushAll() }, false, holdfast.ErrLost},
		// The connection ends with it, so that the release is sent twice.
		"restart":  {func(b *servertest.Bubble, _, _ *replica) { b.Restart() }, false, holdfast.ErrUnavailable},
		"a rival":  {func(b *servertest.Bubble, _, other *replica) { b.Redis.Del("k"); acquire(t, other.Locker, "k") }, false, holdfast.ErrLost},
		"by clock": {func(_ *servertest.Bubble, r, _ *replica) { r.link.CutUp(); time.Sleep(14300 * time.Millisecond) }, true, holdfast.ErrLost},
		"renewal":  {func(b *servertest.Bubble, _, _ *replica) { b.Redis.Del("k"); time.Sleep(5100 * time.Millisecond) }, true, holdfast.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r, other := newReplica(t, b), newReplica(t, b)
				warm(t, r)
				warm(t, other)
				var told endings
				lock := acquire(t, r.Locker, "k", passing, told.trace())
				time.Sleep(10 * time.Millisecond)
				c.lose(b, r, other)
				began := time.Now()
				err := lock.Release(background)
				if time.Since(began) != 0 {
					t.Errorf("it took %v", time.Since(began))
				}
				if again := lock.Release(background); again != err {
					t.Errorf("again: %v after %v", again, err)
				}
				if c.caller {
					wantIs(t, err, holdfast.ErrLost)
				} else if err != nil {
					t.Errorf("got %v: who told it?", err)
				}
				r.link.Heal()
				time.Sleep(2 * time.Second)
				wantIs(t, told.one(t).Err, c.want)
				ctx, cancel := context.WithTimeout(background, time.Second)
				defer cancel()
				_ = other.Shutdown(ctx)
				time.Sleep(time.Minute)
				empty(t, b, r)
			})
		})
	}
}

// Where a call of the process waits, it has the lock as without the option: at once, without a command.
func TestReleaseInBackgroundHandsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing, holdfast.WithLocalHandover(2, time.Hour))
		warm(t, r)
		synctest.Wait() // for that release
		zero := acquire(t, r.Locker, "k")
		var told endings
		one := call(background, r, "k", told.trace())
		two, three, four := call(background, r, "k"), call(background, r, "k"), call(background, r, "k")
		r.link.Delay(100 * time.Millisecond)
		releaseAtOnce(t, zero) // it was not queued for, and so has one token only
		lock := got(t, one)
		b.ResetCommands()
		releaseAtOnce(t, lock)
		if e := told.one(t); e.Err != nil {
			t.Error(e.Err)
		}
		lock = got(t, two)
		releaseAtOnce(t, lock)
		lock = got(t, three)
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands to hand over", n)
		}
		releaseAtOnce(t, lock) // the tenure is used up
		lock = got(t, four)
		if n := b.Commands().Total(); n != 2 {
			t.Errorf("%d commands for the next tenure, want 2", n)
		}
		releaseAtOnce(t, lock)
		empty(t, b, r)
	})
}

// Calls behind a release have the lock in the order in which they came, and one that gives up makes no difference.
func TestReleaseInBackgroundKeepsTheOrder(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		lock := acquire(t, r.Locker, "k", passing)
		until := make(chan struct{})
		r.link.OnCommand(first("forget", servertest.HoldReply(until)))
		releaseAtOnce(t, lock)
		ctx, cancel := context.WithCancel(background)
		var calls []<-chan result
		for i := range 10 {
			c := background
			if i%4 == 0 {
				c = ctx
			}
			calls = append(calls, call(c, r, "k"))
		}
		cancel()
		synctest.Wait()
		close(until)
		last := lock.Token()
		for i, c := range calls {
			if i%4 == 0 {
				wantIs(t, (<-c).err, context.Canceled)
				continue
			}
			lock := got(t, c)
			if lock.Token() <= last {
				t.Errorf("token %d after %d", lock.Token(), last)
			}
			last = lock.Token()
			for _, later := range calls[i+1:] {
				if (i+1)%4 != 0 {
					notYet(t, later)
				}
				break
			}
			release(t, lock)
		}
		empty(t, b, r)
	})
}

// One key has several releases on their way: the next call waits for all of them.
func TestReleaseInBackgroundOfSeveralMembers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing)
		warm(t, r)
		synctest.Wait() // for that release
		one := acquire(t, r.Locker, "k", holdfast.WithReentryID("id"))
		two := acquire(t, r.Locker, "k", holdfast.WithReentryID("id"))
		until := make(chan struct{})
		r.link.OnCommand(first("forget", servertest.HoldRequest(until)))
		releaseAtOnce(t, one)
		synctest.Wait()
		time.AfterFunc(100*time.Millisecond, func() { close(until) })
		releaseAtOnce(t, two)
		synctest.Wait()
		release(t, acquire(t, r.Locker, "k"))
		empty(t, b, r)
	})
}

// The last handle frees the lock.
func TestReleaseInBackgroundOfANestedLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing, holdfast.WithReentrancy())
		warm(t, r)
		synctest.Wait() // for that release
		outer := acquire(t, r.Locker, "k")
		inner, err := r.TryAcquire(outer.Context(background), "k")
		if err != nil {
			t.Fatal(err)
		}
		r.link.Delay(100 * time.Millisecond)
		release(t, outer)
		time.Sleep(time.Second)
		if inner.Err() != nil || !b.Redis.Exists("k") {
			t.Errorf("free with a handle left: %v", inner.Err())
		}
		releaseAtOnce(t, inner)
		time.Sleep(time.Second)
		if b.Redis.Exists("k") {
			t.Error("not released")
		}
		empty(t, b, r)
	})
}

// Shutdown waits for the answer.
func TestReleaseInBackgroundAndShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing)
		warm(t, r)
		synctest.Wait() // for that release
		var told endings
		lock := acquire(t, r.Locker, "k", told.trace())
		until := make(chan struct{})
		r.link.OnCommand(first("forget", servertest.HoldReply(until)))
		releaseAtOnce(t, lock)
		waits := call(background, r, "k")
		time.AfterFunc(500*time.Millisecond, func() { close(until) })
		b.ResetCommands()
		began := time.Now()
		shutdown(t, r.Locker)
		if d := time.Since(began); d != 500*time.Millisecond {
			t.Errorf("Shutdown after %v", d)
		}
		told.one(t)
		res := <-waits
		wantIs(t, res.err, holdfast.ErrClosed)
		if res.at.After(began) {
			t.Error("a call that waits for the release outlives the Locker")
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands during Shutdown", n)
		}
		if b.Redis.Exists("k") {
			t.Error("not released")
		}
	})
	// Also between two tries.
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		var told endings
		lock := acquire(t, r.Locker, "k", passing, told.trace())
		r.link.Refuse(errRefused)
		r.link.Reset()
		releaseAtOnce(t, lock)
		synctest.Wait()
		time.AfterFunc(time.Second, func() { r.link.Refuse(nil) })
		shutdown(t, r.Locker)
		if e := told.one(t); e.Err != nil {
			t.Error(e.Err)
		}
		if b.Redis.Exists("k") {
			t.Error("not released")
		}
	})
	// Only as long as it may.
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing, holdfast.WithTTL(24*time.Hour))
		warm(t, r)
		synctest.Wait() // for that release
		var told endings
		lock := acquire(t, r.Locker, "k", told.trace())
		held := acquire(t, r.Locker, "held")
		r.link.CutUp()
		releaseAtOnce(t, lock)
		ctx, cancel := context.WithTimeout(background, 500*time.Millisecond)
		defer cancel()
		began := time.Now()
		wantIs(t, r.Shutdown(ctx), context.DeadlineExceeded)
		if d := time.Since(began); d != 500*time.Millisecond {
			t.Errorf("Shutdown after %v", d)
		}
		// What it gave up is released as without the option.
		began = time.Now()
		wantIs(t, held.Release(background), holdfast.ErrUnavailable)
		if time.Since(began) == 0 {
			t.Error("nobody waited for the release of a lock that Shutdown gave up")
		}
		time.Sleep(time.Minute)
		if n := holdfast.Under(r.Locker); n != 0 {
			t.Errorf("%d under way a minute after", n)
		}
		wantIs(t, told.one(t).Err, holdfast.ErrUnavailable)
		r.link.Heal()
		r.link.Reset()
		time.Sleep(time.Minute)
	})
}

// A hook that takes its time holds up nobody but Shutdown.
func TestReleaseInBackgroundWithASlowHook(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		until := make(chan struct{})
		r := newReplica(t, b, passing, holdfast.WithTrace(&holdfast.Trace{Released: func(holdfast.Event) { <-until }}))
		for range 20 {
			releaseAtOnce(t, acquire(t, r.Locker, "k"))
		}
		r.link.Delay(time.Millisecond)
		began := time.Now()
		releaseAtOnce(t, acquire(t, r.Locker, "k"))
		if d := time.Since(began); d > 10*time.Millisecond {
			t.Errorf("a cycle took %v", d)
		}
		done := make(chan struct{})
		go func() { defer close(done); shutdown(t, r.Locker) }()
		synctest.Wait()
		if isClosed(done) {
			t.Error("Shutdown did not wait for the hooks")
		}
		close(until)
		<-done
	})
}

// A hook that panics ends the program, as in a renewal: it has a goroutine of its own by then, and nobody could recover.
func TestReleaseInBackgroundHookThatPanics(t *testing.T) {
	const child = "HOLDFAST_PANIC"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "panic: a hook") || strings.Contains(string(out), "lived on") {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing, holdfast.WithTrace(&holdfast.Trace{Released: func(holdfast.Event) { panic("a hook") }}))
		lock := acquire(t, r.Locker, "k")
		func() {
			defer func() { _ = recover() }()
			_ = lock.Release(background)
		}()
		time.Sleep(time.Minute)
		fmt.Println("lived on")
	})
}

// Where the lock is handed over the hook runs in Release, as it does without the option.
func TestReleaseInBackgroundHookThatPanicsInAHandover(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing)
		warm(t, r)
		synctest.Wait() // for that release
		zero := acquire(t, r.Locker, "k")
		one := call(background, r, "k", holdfast.WithTrace(&holdfast.Trace{Released: func(holdfast.Event) { panic("a hook") }}))
		two := call(background, r, "k")
		release(t, zero)
		lock := got(t, one)
		panics(t, func() { _ = lock.Release(background) })
		release(t, got(t, two))
		empty(t, b, r)
	})
}

// The values of the context are the caller's, who may use it for something else once Release has returned.
func TestReleaseInBackgroundDoesNotKeepTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, passing)
		r.rdb.AddHook(looking{})
		var returned bool
		lock := acquire(t, r.Locker, "k")
		ctx := &guarded{background, func() {
			if returned {
				t.Error("the context is in use after Release")
			}
		}}
		r.link.Delay(time.Millisecond)
		release(t, lock)
		if err := lock.Release(ctx); err != nil {
			t.Error(err)
		}
		lock = acquire(t, r.Locker, "k")
		if err := lock.Release(ctx); err != nil {
			t.Error(err)
		}
		returned = true
		empty(t, b, r)
	})
}

// looking is a hook that asks the context of each command.
type looking struct{}

func (looking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (looking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		_ = ctx.Value("span")
		err := next(ctx, cmd)
		_ = ctx.Value("span")
		return err
	}
}

func (looking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// guarded is a context that tells when it is used.
type guarded struct {
	context.Context
	used func()
}

func (c *guarded) Value(key any) any { c.used(); return c.Context.Value(key) }
func (c *guarded) Err() error        { c.used(); return c.Context.Err() }

// Many goroutines, one key: one holder at a time, tokens rise, and all have their turn.
func TestReleaseInBackgroundOfMany(t *testing.T) {
	for name, opts := range map[string][]holdfast.Option{"plain": nil, "no handover": {holdfast.WithLocalHandover(0, 0)}, "two": {holdfast.WithLocalHandover(2, time.Second)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				var rs []*replica
				for range 2 {
					r := newReplica(t, b, append(opts, passing)...)
					r.link.Delay(time.Millisecond)
					rs = append(rs, r)
				}
				var all sync.WaitGroup
				mu := make(semaphore, 1)
				var holder *holdfast.Lock
				var last int64
				served, tried := 0, 0
				for i := range 64 {
					all.Go(func() {
						for n := range 6 {
							take, try := rs[i%2].Acquire, n%3 == 2
							if try {
								take = rs[i%2].TryAcquire
							}
							lock, err := take(background, "k")
							if try && errors.Is(err, holdfast.ErrNotAcquired) {
								continue
							}
							if err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							if holder != nil && holder.Err() == nil {
								t.Errorf("two holders, %d and %d", holder.Token(), lock.Token())
							}
							if lock.Token() <= last {
								t.Errorf("token %d after %d", lock.Token(), last)
							}
							if holder, last = lock, lock.Token(); try {
								tried++
							} else {
								served++
							}
							mu.Unlock()
							time.Sleep(time.Duration(i%3) * time.Millisecond)
							if err := lock.Release(background); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
				if served != 64*4 {
					t.Errorf("%d were served, want %d", served, 64*4)
				}
				t.Logf("%d tries served", tried)
				empty(t, b, rs...)
			})
		})
	}
}

// On several masters: a minority that is silent holds up nobody, and that of a majority is told.
func TestRedLockReleaseInBackground(t *testing.T) {
	for silent := range 5 {
		t.Run(fmt.Sprint(silent, " silent"), func(t *testing.T) {
			bubbleOf(t, 5, func(t *testing.T, ms masters) {
				v := ms.voter(t)
				releaseAll(t, acquire(t, v.Locker, "k"))
				var told endings
				lock := acquire(t, v.Locker, "k", passing, told.trace())
				time.Sleep(time.Second)
				for _, l := range v.links[:silent] {
					l.CutUp()
				}
				releaseAtOnce(t, lock)
				synctest.Wait()
				if n := ms.having("k"); n != silent {
					t.Errorf("%d masters still have it, want %d", n, silent)
				}
				if silent <= 2 {
					if e := told.one(t); e.Err != nil {
						t.Error(e.Err)
					}
					release(t, acquire(t, v.Locker, "k"))
				} else {
					told.none(t)
					began := time.Now()
					_, err := v.TryAcquire(background, "k")
					wantIs(t, err, holdfast.ErrUnavailable)
					if d := time.Since(began); d > 5*time.Second {
						t.Errorf("told after %v", d)
					}
					wantIs(t, told.one(t).Err, holdfast.ErrUnavailable)
				}
				for _, l := range v.links {
					l.Heal()
				}
				time.Sleep(time.Minute)
				if n := ms.having("k"); n != 0 {
					t.Errorf("%d masters have it in the end", n)
				}
				told.one(t)
				release(t, acquire(t, v.Locker, "k"))
				shutdown(t, v.Locker)
			})
		})
	}
	bubbleOf(t, 3, func(t *testing.T, ms masters) { // most have forgotten it
		v := ms.voter(t)
		releaseAll(t, acquire(t, v.Locker, "k"))
		var told endings
		lock := acquire(t, v.Locker, "k", passing, told.trace())
		synctest.Wait()
		for _, m := range ms[:2] {
			m.Redis.Del("k")
		}
		releaseAtOnce(t, lock)
		wantIs(t, told.one(t).Err, holdfast.ErrLost)
		shutdown(t, v.Locker)
	})
}

// With acknowledgements of replicas, which the release needs none of.
func TestReleaseInBackgroundWithReplicaAcks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 2, 20*time.Millisecond)
		r := newReplica(t, b, holdfast.WithReplicaAcks(2, time.Second), passing)
		for range 3 {
			releaseAtOnce(t, acquire(t, r.Locker, "k"))
		}
		empty(t, b, r)
	})
}

// isClosed tells whether c is.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
