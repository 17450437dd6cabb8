package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
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
		Ended: func(ev holdfast.Event) {
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

// told are those so far, of which there must be n.
func (e *endings) told(t *testing.T, n int) []holdfast.Event {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.events) != n {
		t.Fatalf("Ended was told %d times, want %d: %v", len(e.events), n, e.events)
	}
	return e.events
}

// one is the only one there is.
func (e *endings) one(t *testing.T) holdfast.Event { t.Helper(); return e.told(t, 1)[0] }

// none checks that nothing is known yet.
func (e *endings) none(t *testing.T) { t.Helper(); e.told(t, 0) }

// releaseAtOnce releases a lock that was not lost, without a wait.
func releaseAtOnce(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	began := time.Now()
	release(t, lock)
	if d := time.Since(began); d != 0 || lock.Err() == nil || !isDone(lock.Context(background)) {
		t.Errorf("Release took %v, and then: %v", d, lock.Err())
	}
}

// Release makes no round trip; the lock is free, and Trace told, when the command has arrived and been answered. The error
// of Do is that of its function.
func TestReleaseInBackgroundDoesNotWait(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *servertest.Bubble, ...holdfast.Option) *replica{"lanes": newReplica, "inline": newInline} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := start(t, b)
				warm(t, r)
				b.ResetCommands()
				var told, ofDo endings
				lock := acquire(t, r.Locker, "k", passing, told.trace())
				time.Sleep(time.Second)
				until := make(chan struct{})
				r.link.OnCommand(first("forget", servertest.HoldReply(until)))
				releaseAtOnce(t, lock)
				fine(t, lock.Release(ended))
				told.none(t)
				unheld(t, b, "k")
				time.Sleep(500 * time.Millisecond)
				close(until)
				if e := told.one(t); e.Err != nil || e.Elapsed != time.Second || e.Token != lock.Token() || e.Key != "k" {
					t.Errorf("Ended: %+v", e)
				}
				sent(t, b, 2)
				fine(t, acquire(t, r.Locker, "k", passing).Release(ended))

				var through time.Time
				err := r.Do(background, "k", func(context.Context) error {
					b.Redis.Del("k")
					r.link.Delay(100 * time.Millisecond)
					through = time.Now()
					return errWork
				}, passing, ofDo.trace())
				if err != errWork || !time.Now().Equal(through) {
					t.Errorf("%v, %v after its function", err, time.Since(through))
				}
				ofDo.none(t)
				time.Sleep(time.Second)
				wantIs(t, ofDo.one(t).Err, holdfast.ErrLost)
				empty(t, b, r)
			})
		})
	}
}

// A call that comes after Release goes behind the release, however long that is on its way: it does not find the lock
// held, and asks once.
func TestReleaseInBackgroundIsInFrontOfTheNextCall(t *testing.T) {
	const late = 200 * time.Millisecond
	// cycle takes k, and again while the release is held back.
	cycle := func(t *testing.T, take func() (*holdfast.Lock, error), script string, links ...*servertest.Link) (next *holdfast.Lock) {
		t.Helper()
		lock, err := take()
		must(t, err)
		time.Sleep(500 * time.Millisecond)
		until := make(chan struct{})
		each(links, func(l *servertest.Link) { l.OnCommand(first(script, servertest.HoldRequest(until))) })
		releaseAtOnce(t, lock)
		time.AfterFunc(late, func() { close(until) })
		began := time.Now()
		if next, err = take(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != late || next.Token() <= lock.Token() {
			t.Errorf("token %d after %d, in %v, want %v", next.Token(), lock.Token(), d, late)
		}
		return next
	}
	for what, c := range map[string]struct {
		try  bool
		opts []holdfast.CallOption
	}{
		"Acquire":        {},
		"no wait":        {opts: []holdfast.CallOption{holdfast.WithWait(0)}},
		"TryAcquire":     {try: true},
		"re-entry":       {opts: []holdfast.CallOption{holdfast.WithReentryID("id")}},
		"re-entry, try":  {try: true, opts: []holdfast.CallOption{holdfast.WithReentryID("id")}},
		"other options":  {opts: []holdfast.CallOption{holdfast.WithLabel("other"), holdfast.WithoutRenewal(), holdfast.WithReentrancy()}},
		"with the trace": {opts: []holdfast.CallOption{holdfast.WithTrace(&holdfast.Trace{Ended: func(holdfast.Event) {}})}},
	} {
		take := func(l *holdfast.Locker) func() (*holdfast.Lock, error) {
			f := l.Acquire
			if c.try {
				f = l.TryAcquire
			}
			return func() (*holdfast.Lock, error) { return f(background, "k", append(c.opts, passing)...) }
		}
		for name, opts := range map[string][]holdfast.Option{
			"plain":       nil,
			"no handover": {holdfast.WithLocalHandover(0, 0)},
			"short lease": {holdfast.WithTTL(2 * time.Second)},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
					release(t, acquire(t, r.Locker, "warm", holdfast.WithReentryID("id")))
					b.ResetCommands()
					next := cycle(t, take(r.Locker), "forget", r.link)
					notLate(t, b, next)
					sent(t, b, 3)
					releaseAtOnce(t, next)
					lock, err := take(r.Locker)()
					must(t, err)
					releaseAtOnce(t, lock)
				}, opts...)
			})
		}
		if strings.HasPrefix(what, "re-entry") {
			continue // needs one Redis
		}
		t.Run("several masters/"+what, func(t *testing.T) {
			bubbleOf(t, 3, func(t *testing.T, ms masters) {
				v := ms.voter(t)
				releaseAll(t, acquire(t, v.Locker, "k"))
				next := cycle(t, take(v.Locker), "yield", v.links...)
				releaseAtOnce(t, next)
				time.Sleep(time.Second)
				ms.have(t, "k", 0)
				shutdown(t, v.Locker)
			})
		})
	}
}

// Whatever becomes of the release on its way: it is sent again, its outcome told once, and the next call has the lock. One
// that arrives after the second one, and during another hold, does no harm.
func TestReleaseInBackgroundThatGoesAstray(t *testing.T) {
	late := make(chan struct{})
	for name, v := range map[string]func() servertest.Verdict{
		"reply lost":           func() servertest.Verdict { return servertest.LoseReply },
		"reply lost, closed":   func() servertest.Verdict { return servertest.LoseReplyAndClose },
		"request lost":         func() servertest.Verdict { return servertest.LoseRequest },
		"request lost, closed": func() servertest.Verdict { return servertest.LoseRequestAndClose },
		"late":                 func() servertest.Verdict { late = make(chan struct{}); return servertest.HoldRequest(late) },
	} {
		for _, try := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", try ", try), func(t *testing.T) {
				duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
					var told endings
					lock := acquire(t, r.Locker, "k", passing, told.trace())
					r.link.OnCommand(first("forget", v()))
					releaseAtOnce(t, lock)
					time.Sleep(10 * time.Millisecond) // a try does not wait for longer than the release
					take := r.Acquire
					if try {
						take = r.TryAcquire
					}
					next, err := take(background, "k")
					must(t, err)
					if name == "late" {
						close(late)
						time.Sleep(time.Second)
						notLate(t, b, next)
					}
					if e := told.one(t); e.Err != nil || e.Elapsed != 0 || told.nodes != 0 {
						t.Errorf("Ended: %+v, and %d failures", e, told.nodes)
					}
					release(t, next)
					release(t, acquire(t, other.Locker, "k"))
				})
			})
		}
	}
}

// With a server that is silent the next call ends as it does without the option, at the same moment.
func TestReleaseInBackgroundWithASilentServer(t *testing.T) {
	type outcome struct {
		took time.Duration
		err  string
	}
	ends := func(by time.Duration) func(*holdfast.Locker) (*holdfast.Lock, error) {
		return func(l *holdfast.Locker) (*holdfast.Lock, error) {
			ctx, cancel := context.WithTimeout(background, by)
			defer cancel()
			return l.Acquire(ctx, "k")
		}
	}
	waits := func(opts ...holdfast.CallOption) func(*holdfast.Locker) (*holdfast.Lock, error) {
		return func(l *holdfast.Locker) (*holdfast.Lock, error) { return l.Acquire(background, "k", opts...) }
	}
	for name, opts := range map[string][]holdfast.Option{"plain": nil, "no handover": {holdfast.WithLocalHandover(0, 0)}, "short lease": {holdfast.WithTTL(800 * time.Millisecond)}} {
		for what, call := range map[string]func(*holdfast.Locker) (*holdfast.Lock, error){
			"TryAcquire": func(l *holdfast.Locker) (*holdfast.Lock, error) { return l.TryAcquire(background, "k") },
			"Acquire":    waits(),
			"deadline":   ends(150 * time.Millisecond),
			"wait":       waits(holdfast.WithWait(2 * time.Second)),
			"short wait": waits(holdfast.WithWait(time.Millisecond)),
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				run := func(after bool) (o outcome) {
					solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
						holdfast.ByLanes(r.Locker)
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
						if e := told.one(t); after && (!errors.Is(e.Err, holdfast.ErrUnavailable) || told.nodes != 1) {
							t.Errorf("%v, and %d failures told, want 1", e.Err, told.nodes)
						}
						r.link.Heal() // what was held back arrives in any order, an acquire that failed perhaps before what undoes it
						r.link.Reset()
						time.Sleep(5 * time.Second)
						release(t, await(t, r.Locker, "k")) // which may find several connections of the pool broken, one after the other
					}, opts...)
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

// A release that nobody answers is repeated until the lease is over; one that Redis refuses for good is told at once.
func TestReleaseInBackgroundIsRepeated(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
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
		unheld(t, b, "k")
		told.one(t)

		var refused endings
		lock = acquire(t, r.Locker, "k", passing, refused.trace())
		b.Redis.SetError("NOPERM no")
		releaseAtOnce(t, lock)
		wantIs(t, refused.one(t).Err, holdfast.ErrUnavailable)
		b.Redis.SetError("")
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrNotAcquired)
	}, holdfast.WithTTL(time.Minute))
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
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				other := newReplica(t, b)
				warm(t, other)
				var told endings
				lock := acquire(t, r.Locker, "k", passing, told.trace())
				time.Sleep(10 * time.Millisecond)
				c.lose(b, r, other)
				began := time.Now()
				err := lock.Release(background)
				if again := lock.Release(background); again != err || time.Since(began) != 0 || errors.Is(err, holdfast.ErrLost) != c.caller {
					t.Errorf("%v, then %v, after %v", err, again, time.Since(began))
				}
				r.link.Heal()
				time.Sleep(2 * time.Second)
				wantIs(t, told.one(t).Err, c.want)
				ctx, cancel := context.WithTimeout(background, time.Second)
				defer cancel()
				_ = other.Shutdown(ctx)
				time.Sleep(time.Minute)
			})
		})
	}
}

// Where a call of the process waits, it has the lock as without the option: at once, without a command.
func TestReleaseInBackgroundHandsOver(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		var told endings
		lock, two := inRow(t, r, told.trace())
		three, four := call(background, r, "k"), call(background, r, "k")
		r.link.Delay(100 * time.Millisecond)
		b.ResetCommands()
		for _, c := range []<-chan result{two, three} {
			releaseAtOnce(t, lock)
			if e := told.one(t); e.Err != nil {
				t.Error(e.Err)
			}
			lock = got(t, c)
		}
		sent(t, b, 0)
		releaseAtOnce(t, lock) // the tenure is used up
		lock = got(t, four)
		sent(t, b, 2)
		releaseAtOnce(t, lock)
	}, passing, holdfast.WithLocalHandover(2, time.Hour))
}

// Calls behind a release have the lock in the order in which they came, and one that gives up makes no difference.
func TestReleaseInBackgroundKeepsTheOrder(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", passing)
		until := make(chan struct{})
		r.link.OnCommand(first("forget", servertest.HoldReply(until)))
		releaseAtOnce(t, lock)
		ctx, cancel := context.WithCancel(background)
		var stay, leave []<-chan result
		for range 3 {
			leave = append(leave, call(ctx, r, "k"))
			stay = append(stay, call(background, r, "k"), call(background, r, "k"))
		}
		cancel()
		for _, c := range leave {
			wantIs(t, (<-c).err, context.Canceled)
		}
		close(until)
		last := lock.Token()
		for i, c := range stay {
			lock := got(t, c)
			if lock.Token() <= last {
				t.Errorf("token %d after %d", lock.Token(), last)
			}
			last = lock.Token()
			for _, later := range stay[i+1:] {
				notYet(t, later)
			}
			release(t, lock)
		}
	})
}

// One key has several releases on their way: the next call waits for all of them.
func TestReleaseInBackgroundOfSeveralMembers(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
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
	}, passing)
}

// Shutdown waits for the answer, also between two tries, and only as long as it may.
func TestReleaseInBackgroundAndShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		var told endings
		lock := acquire(t, r.Locker, "k", passing, told.trace())
		until := make(chan struct{})
		r.link.OnCommand(first("forget", servertest.HoldReply(until)))
		releaseAtOnce(t, lock)
		waits := call(background, r, "k")
		time.AfterFunc(500*time.Millisecond, func() { close(until) })
		b.ResetCommands()
		began := time.Now()
		shutdown(t, r.Locker)
		took(t, began, 500*time.Millisecond)
		told.one(t)
		res := <-waits
		wantIs(t, res.err, holdfast.ErrClosed)
		if res.at.After(began) {
			t.Error("a call that waits for the release outlives the Locker")
		}
		if n := b.Commands().Total(); n != 0 || b.Redis.Exists("k") {
			t.Errorf("%d commands during Shutdown; held: %v", n, b.Redis.Exists("k"))
		}
	})
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
		if e := told.one(t); e.Err != nil || b.Redis.Exists("k") {
			t.Errorf("%v; held: %v", e.Err, b.Redis.Exists("k"))
		}
	})
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(24*time.Hour))
		warm(t, r)
		var told endings
		lock := acquire(t, r.Locker, "k", passing, told.trace())
		held := acquire(t, r.Locker, "held", passing)
		r.link.CutUp()
		releaseAtOnce(t, lock)
		ctx, cancel := context.WithTimeout(background, 500*time.Millisecond)
		defer cancel()
		began := time.Now()
		wantIs(t, r.Shutdown(ctx), context.DeadlineExceeded)
		took(t, began, 500*time.Millisecond)
		began = time.Now() // what it gave up is released as without the option
		wantIs(t, held.Release(background), holdfast.ErrLost)
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
		r := newReplica(t, b, passing, holdfast.WithTrace(&holdfast.Trace{Ended: func(holdfast.Event) { <-until }}))
		r.link.Delay(time.Millisecond)
		began := time.Now()
		for range 20 {
			releaseAtOnce(t, acquire(t, r.Locker, "k"))
		}
		atMost(t, began, 200*time.Millisecond)
		done := make(chan struct{})
		go func() { defer close(done); shutdown(t, r.Locker) }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("Shutdown did not wait for the hooks")
		default:
		}
		close(until)
		<-done
	})
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
				each(v.links[:silent], (*servertest.Link).CutUp)
				releaseAtOnce(t, lock)
				synctest.Wait()
				ms.have(t, "k", silent)
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
					atMost(t, began, 5*time.Second)
					wantIs(t, told.one(t).Err, holdfast.ErrUnavailable)
				}
				each(v.links, (*servertest.Link).Heal)
				time.Sleep(time.Minute)
				ms.have(t, "k", 0)
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
