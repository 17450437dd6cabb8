package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// stalled checks that lock ended for want of progress, when that time was up.
func stalled(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	wantIs(t, lock.Err(), holdfast.ErrLost, holdfast.ErrNoProgress)
	ctx := lock.Context(background)
	wantIs(t, context.Cause(ctx), holdfast.ErrLost, holdfast.ErrNoProgress)
	if ctx.Err() != context.Canceled { //nolint:errorlint // the contract of Context.Err
		t.Errorf("the context's Err is %v", ctx.Err())
	}
	if lock.Deadline().After(time.Now()) {
		t.Error("a lost lock has a deadline to come")
	}
}

// work reports progress n times, each time after d.
func work(ctx context.Context, n int, d time.Duration) {
	for range n {
		time.Sleep(d)
		holdfast.Progress(ctx)
	}
}

// A lock lasts for as long as its work reports, whatever the time between reports is beside the lease, and costs what it
// costs without the option.
func TestProgressKeepsTheLock(t *testing.T) {
	const ttl = 3 * time.Second
	for _, d := range []time.Duration{10 * time.Millisecond, time.Second, ttl, time.Minute, 1<<63 - 1} {
		t.Run(d.String(), func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				time.Sleep(time.Second) // or the longest d would not be too long for the clock
				lock, plain := acquire(t, r.Locker, "k", holdfast.WithProgress(d)), acquire(t, r.Locker, "plain")
				ctx := lock.Context(background)
				sent := map[string]int{}
				r.link.OnCommand(func(args []string) servertest.Verdict {
					if kind(args) == "renew" {
						sent[args[3]]++
					}
					return servertest.Pass
				})
				every := min(d*9/10, 7*time.Second)
				for end := time.Now().Add(100 * ttl); time.Now().Before(end); {
					work(ctx, 1, every)
				}
				fine(t, lock.Err())
				fine(t, ctx.Err())
				notLate(t, b, lock)
				release(t, lock)
				release(t, plain)
				synctest.Wait()
				if sent["k"] < 290 || sent["k"] > 340 { // it may be renewed a little early whenever its time is looked at
					t.Errorf("renewals: %v", sent)
				}
			}, holdfast.WithTTL(ttl))
		})
	}
}

// Work that hangs loses the lock d after its last report, and the next holder has it when the lease has run out.
func TestWorkThatHangsLosesTheLock(t *testing.T) {
	const ttl, d = 4 * time.Second, 10 * time.Second
	for name, c := range map[string]struct{ renewal, released bool }{"renewed": {renewal: true}, "not renewed": {}, "and comes back": {true, true}} {
		t.Run(name, func(t *testing.T) {
			duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
				var ends endings
				opts, ttl := []holdfast.CallOption{holdfast.WithProgress(d), ends.trace()}, ttl
				if !c.renewal {
					ttl = time.Minute
					opts = append(opts, holdfast.WithoutRenewal())
				}
				lock := acquire(t, r.Locker, "k", append(opts, holdfast.WithTTL(ttl))...)
				ctx := lock.Context(background)
				began := time.Now()
				work(ctx, 5, 7*time.Second)
				next := call(background, other, "k")
				time.Sleep(d - 1)
				fine(t, lock.Err())
				if !lock.Deadline().Equal(time.Now().Add(1)) || isDone(ctx) {
					t.Errorf("the deadline is in %v, the context done: %v", time.Until(lock.Deadline()), isDone(ctx))
				}
				time.Sleep(time.Nanosecond)
				if synctest.Wait(); !isDone(ctx) {
					t.Error("the context goes on")
				}
				stalled(t, lock)
				same(t, lock.Err(), `holdfast: hold "k": lock was lost: no progress reported within the time of WithProgress`)
				if ev := ends.one(t); ev.Elapsed != 45*time.Second || !errors.Is(ev.Err, holdfast.ErrNoProgress) {
					t.Errorf("the hook Ended was called for %+v", ev)
				}
				if !b.Redis.Exists("k") {
					t.Error("freed under work that may go on")
				}
				left := ttl
				if c.released {
					left = 0
					wantIs(t, lock.Release(background), holdfast.ErrLost, holdfast.ErrNoProgress)
				} else if !c.renewal {
					left = time.Until(began.Add(ttl + 10*time.Millisecond))
				}
				from := time.Now()
				rival := got(t, next)
				atMost(t, from, left)
				rises(t, lock, rival)
				wantIs(t, lock.Release(background), holdfast.ErrLost, holdfast.ErrNoProgress)
				ends.one(t)
				release(t, rival)
			})
		})
	}
}

// However long the lease and the time between reports are, and whenever the work hangs, its hold ends on time and the next
// holder, whose token is larger, has the lock at most a TTL later.
func TestNextAfterWorkThatHangs(t *testing.T) {
	trials := 1000
	if underRace {
		trials = 50
	}
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		for i := range trials {
			ttl := 3*time.Second + rand.N(5*time.Second) // of shorter leases a waiter may notice the end a second late
			d := 40*time.Millisecond + rand.N(min(3*ttl, 6*time.Second))
			lock := acquire(t, r.Locker, "k", holdfast.WithTTL(ttl), holdfast.WithProgress(d))
			ctx := lock.Context(background)
			next := call(background, other, "k", holdfast.WithTTL(ttl))
			for range rand.N(5) {
				work(ctx, 1, rand.N(d))
			}
			last := time.Now()
			<-ctx.Done()
			if hung := time.Since(last); hung != d {
				t.Errorf("TTL %v: lost after %v, want %v", ttl, hung, d)
			}
			stalled(t, lock)
			rival := got(t, next)
			if waited := time.Since(last); waited > d+ttl {
				t.Errorf("trial %d, TTL %v: the next holder came %v after the last report, want at most %v", i, ttl, waited, d+ttl)
			}
			rises(t, lock, rival)
			wantIs(t, lock.Release(background), holdfast.ErrNoProgress)
			fine(t, rival.Err())
			release(t, rival)
		}
	})
}

// A report that comes after the end revives nothing, though nobody and no timer has noticed the end.
func TestProgressAfterTheEnd(t *testing.T) {
	for name, late := range map[string]time.Duration{"at the end": 0, "later": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newReplica(t, b, holdfast.WithTTL(20*time.Second))
				lock := acquire(t, r.Locker, "k", holdfast.WithProgress(10*time.Second))
				ctx := lock.Context(background)
				holdfast.StopTimer(r.Locker)
				time.Sleep(10*time.Second + late)
				holdfast.Progress(ctx)
				if holdfast.Left(lock) != 0 {
					t.Errorf("%v are left", holdfast.Left(lock))
				}
				if ctx.Err() == nil || !isDone(ctx) {
					t.Error("the context lives on")
				}
				stalled(t, lock)
				holdfast.Progress(ctx)
				stalled(t, lock)
				wantIs(t, lock.Release(background), holdfast.ErrNoProgress)
			})
		})
	}
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", holdfast.WithProgress(time.Second))
		ctx := context.WithoutCancel(lock.Context(background))
		release(t, lock)
		holdfast.Progress(ctx)
		if lock.Err() == nil || lock.Deadline().After(time.Now()) {
			t.Error("a report brought a released lock back")
		}
		holdfast.Progress(background)
		plain := acquire(t, r.Locker, "k")
		holdfast.Progress(plain.Context(ctx))
		release(t, plain)
	})
}

// A report that read the clock just before the end, and takes effect after it, counts only if nobody was told of the end.
func TestProgressThatIsOvertaken(t *testing.T) {
	const d = 10 * time.Second
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		told, untold := acquire(t, r.Locker, "told", holdfast.WithProgress(d)), acquire(t, r.Locker, "untold", holdfast.WithProgress(d))
		holdfast.StopTimer(r.Locker)
		time.Sleep(d)
		wantIs(t, told.Err(), holdfast.ErrNoProgress)
		holdfast.ReportLate(told, 1)
		holdfast.ReportLate(untold, 1)
		stalled(t, told)
		fine(t, untold.Err())
		if left := time.Until(untold.Deadline()); left > d-1 {
			t.Errorf("%v are left", left)
		}
		// Of two reports that were under way at once, the later counts.
		time.Sleep(2 * time.Second)
		holdfast.ReportLate(untold, 0)
		holdfast.ReportLate(untold, time.Second)
		time.Sleep(d - 1)
		fine(t, untold.Err())
		time.Sleep(time.Nanosecond)
		stalled(t, untold)
		wantIs(t, told.Release(background), holdfast.ErrNoProgress)
		wantIs(t, untold.Release(background), holdfast.ErrNoProgress)
	}, holdfast.WithTTL(time.Minute))
}

// Reports and looks at the lock at the moment of its end: a call that has seen it end sees it ended from then on.
func TestProgressBesideTheEnd(t *testing.T) {
	rounds := 300
	if underRace {
		rounds = 50
	}
	survived := 0
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		for range rounds {
			lock := acquire(t, r.Locker, "k", holdfast.WithProgress(time.Second))
			ctx := lock.Context(background)
			if rand.N(2) == 0 {
				holdfast.StallTimer(r.Locker, 3*time.Second)
			}
			time.Sleep(time.Second - 1)
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					time.Sleep(time.Nanosecond)
					for range i {
						holdfast.Progress(ctx)
					}
					switch ended := false; {
					case i%4 == 0:
						holdfast.ReportLate(lock, 1)
					case i%4 == 1:
						holdfast.Progress(ctx)
					default:
						for range 100 {
							err := lock.Err()
							if i%4 == 2 {
								err = ctx.Err()
							}
							if ended = ended || err != nil; ended && (err == nil || holdfast.Err(ctx) == nil || lock.Deadline().After(time.Now())) {
								t.Error("a lock came back")
							}
						}
					}
				})
			}
			all.Wait()
			if synctest.Wait(); lock.Err() == nil {
				survived++
				release(t, lock)
			} else {
				stalled(t, lock)
				wantIs(t, lock.Release(background), holdfast.ErrNoProgress)
				synctest.Wait() // Redis has it
			}
		}
	}, holdfast.WithTTL(time.Minute))
	t.Logf("%d of %d survived", survived, rounds)
}

// What is handed over within the process is the lease, of which the holder before leaves all, and each holder's time counts
// from when it began.
func TestProgressAndHandover(t *testing.T) {
	const d = 5 * time.Second
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprint(both), func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				openInbox(t, b, r)
				zero := acquire(t, r.Locker, "k")
				one := call(background, r, "k", holdfast.WithProgress(d))
				var opts []holdfast.CallOption
				if both {
					opts = append(opts, holdfast.WithProgress(d))
				}
				two := call(background, r, "k", opts...)
				three := call(bounded(t, 2*time.Second), r, "k")
				release(t, zero)
				first := got(t, one)
				time.Sleep(d - time.Second)
				// The others are told of the lease.
				if held := refused(t, (<-three).err); held.TimeLeft < 12*time.Second {
					t.Errorf("%v of the lease are left", held.TimeLeft)
				}
				time.Sleep(time.Second - 1)
				b.ResetCommands()
				release(t, first)
				second := got(t, two)
				began := time.Now()
				sent(t, b, 0)
				notLate(t, b, second)
				if left := time.Until(second.Deadline()); !both && left < 8*time.Second || both && left != d {
					t.Errorf("the deadline is in %v", left)
				}
				if both {
					<-second.Context(background).Done()
					took(t, began, d)
					stalled(t, second)
					wantIs(t, second.Release(background), holdfast.ErrNoProgress)
				} else {
					time.Sleep(time.Minute)
					release(t, second)
				}
			}, holdfast.WithLocalHandover(64, time.Hour))
		})
	}
}

// A reader that hangs ends alone.
func TestProgressOfReaders(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		var locks []*holdfast.Lock
		for range 5 {
			locks = append(locks, read(t, r))
		}
		works, hangs := read(t, r, holdfast.WithProgress(10*time.Second)), read(t, r, holdfast.WithProgress(10*time.Second))
		if works.Token() != hangs.Token() || works.Token() != locks[0].Token() {
			t.Error("they do not share a tenure")
		}
		time.Sleep(4 * time.Second)
		b.ResetCommands()
		work(works.Context(background), 9, 3*time.Second)
		sent(t, b, 9) // one every third of a lease
		stalled(t, hangs)
		for _, lk := range append(locks, works) {
			fine(t, lk.Err())
			notLate(t, b, lk)
			release(t, lk)
		}
		// What has not noticed may still run: the lease runs out, or its Release comes.
		if left := b.Redis.TTL("k"); left <= 0 {
			t.Error("released beside one that has not")
		}
		wantIs(t, hangs.Release(background), holdfast.ErrNoProgress)
		unheld(t, b, "k")
	}, holdfast.WithTTL(9*time.Second))
}

// A report counts for all locks of its context, by whichever handle, but not by one that was released.
func TestProgressOfNestedLocks(t *testing.T) {
	const d = 10 * time.Second
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		opts := []holdfast.CallOption{holdfast.WithProgress(d), holdfast.WithReentrancy()}
		outer := acquire(t, r.Locker, "a", opts...)
		other, err := r.Acquire(outer.Context(background), "b", opts...)
		must(t, err)
		nested, err := r.Acquire(other.Context(outer.Context(background)), "a", opts...)
		must(t, err)
		inner := nested.Context(other.Context(background)) // carries outer's hold by the nested handle alone
		work(inner, 10, d-1)
		fine(t, errors.Join(outer.Err(), other.Err(), nested.Err()))
		inner = context.WithoutCancel(inner)
		release(t, nested)
		work(inner, 2, d/2)
		fine(t, other.Err())
		stalled(t, outer)
		wantIs(t, outer.Release(background), holdfast.ErrNoProgress)
		release(t, other)
	})
}

// Of the bounds of a hold, the first ends it, with its own cause.
func TestProgressBesideOtherBounds(t *testing.T) {
	for name, c := range map[string]struct {
		opts  []holdfast.CallOption
		works int // seconds, with a report in each
		ends  time.Duration
		cause string
	}{
		"max hold":                  {[]holdfast.CallOption{holdfast.WithMaxHold(20 * time.Second)}, 19, 20 * time.Second, "WithMaxHold"},
		"progress before max hold":  {[]holdfast.CallOption{holdfast.WithMaxHold(20 * time.Second)}, 9, 19 * time.Second, "WithProgress"},
		"the lease":                 {[]holdfast.CallOption{holdfast.WithoutRenewal()}, 14, 15*time.Second - holdfast.Margin(15*time.Second), "lease"},
		"progress before the lease": {[]holdfast.CallOption{holdfast.WithoutRenewal()}, 3, 13 * time.Second, "WithProgress"},
		"max hold, and no report":   {[]holdfast.CallOption{holdfast.WithMaxHold(20 * time.Second)}, 0, 10 * time.Second, "WithProgress"},
		"neither":                   {nil, 100, 110 * time.Second, "WithProgress"},
	} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				lock := acquire(t, r.Locker, "k", append(c.opts, holdfast.WithProgress(10*time.Second))...)
				ctx, began := lock.Context(background), time.Now()
				go work(ctx, c.works, time.Second)
				<-ctx.Done()
				took(t, began, c.ends)
				if err := lock.Err(); !contains(err, c.cause) || errors.Is(err, holdfast.ErrNoProgress) != (c.cause == "WithProgress") {
					t.Errorf("got %v, want %s", err, c.cause)
				}
				wantIs(t, lock.Release(background), holdfast.ErrLost)
				time.Sleep(10 * time.Second)
			})
		})
	}
}

// Extend moves the lease, not the time of the next report.
func TestExtendIsNoProgress(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k", holdfast.WithProgress(10*time.Second))
		time.Sleep(8 * time.Second)
		must(t, lock.Extend(background, time.Minute))
		if left := time.Until(lock.Deadline()); left != 2*time.Second {
			t.Errorf("the deadline is in %v", left)
		}
		time.Sleep(time.Second)
		holdfast.Progress(lock.Context(background))
		time.Sleep(9 * time.Second)
		fine(t, lock.Err())
		time.Sleep(time.Second)
		stalled(t, lock)
		wantIs(t, lock.Extend(background, time.Minute), holdfast.ErrNoProgress)
		if left := b.Redis.TTL("k"); left != 49*time.Second {
			t.Errorf("%v of the lease are left", left)
		}
		wantIs(t, lock.Release(background), holdfast.ErrNoProgress)

		unheld(t, b, "k")

		// An older answer does not shorten the lease, though the next report is due before.
		lock = acquire(t, r.Locker, "k", holdfast.WithProgress(2*time.Second), holdfast.WithoutRenewal())
		ctx := lock.Context(background)
		must(t, lock.Extend(background, time.Minute))
		holdfast.Answer(lock, 10*time.Second)
		work(ctx, 50, time.Second)
		fine(t, lock.Err())
		release(t, lock)

		// Redis has its time for an answer though the next report is due before.
		var ends endings
		lock = acquire(t, r.Locker, "k", holdfast.WithProgress(2*time.Second), ends.trace())
		time.Sleep(1500 * time.Millisecond)
		r.link.Delay(400 * time.Millisecond)
		go func() {
			time.Sleep(400 * time.Millisecond)
			holdfast.Progress(lock.Context(background))
		}()
		must(t, lock.Extend(background, time.Minute))
		r.link.Delay(0)
		fine(t, lock.Err())
		if ends.none(t); ends.nodes > 0 {
			t.Errorf("%d failures were reported", ends.nodes)
		}
		release(t, lock)
	})
}

// What others are told of is the lease that ends first, not the hold.
func TestTimeLeftOfAHoldThatMayStall(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		two := holdfast.WithLimit(2)
		one := acquire(t, r.Locker, "k", two)
		time.Sleep(3 * time.Second)
		other := acquire(t, r.Locker, "k", two, holdfast.WithProgress(5*time.Second))
		held := refused(t, (<-call(bounded(t, time.Second), r, "k", two)).err)
		if held.TimeLeft > 11*time.Second || held.TimeLeft < 9*time.Second || held.Holders != 2 {
			t.Errorf("got %+v, want what the first has left", held)
		}
		release(t, one)
		release(t, other)
	})
}

// On several masters the lock is released when the lease has run out, not when the hold has ended.
func TestProgressOnSeveralMasters(t *testing.T) {
	const d, ttl = 10 * time.Second, 15 * time.Second
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		r, other := ms.voter(t), ms.voter(t)
		lock := acquire(t, r.Locker, "k", holdfast.WithProgress(d))
		ctx := lock.Context(background)
		work(ctx, 20, 7*time.Second)
		fine(t, ctx.Err())
		last := time.Now()
		<-ctx.Done()
		took(t, last, d)
		stalled(t, lock)
		time.Sleep(ttl / 2)
		ms.have(t, "k", 3)
		rival := await(t, other.Locker, "k")
		atMost(t, last, d+ttl)
		rises(t, lock, rival)
		wantIs(t, lock.Release(background), holdfast.ErrNoProgress)
		fine(t, rival.Err())
		releaseAll(t, rival)
	})
}

// While DoAll waits for a lock, nobody can report progress under those that it has: their time begins with fn.
func TestProgressInDoAll(t *testing.T) {
	const d = 5 * time.Second
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		for _, reports := range []int{0, 20} {
			var began time.Time
			err := r.DoAll(background, []string{"a", "b"}, func(ctx context.Context) error { // which are free
				began = time.Now()
				work(ctx, reports, 3*time.Second)
				<-ctx.Done()
				return nil
			}, holdfast.WithProgress(d))
			wantIs(t, err, holdfast.ErrNoProgress)
			took(t, began, time.Duration(reports)*3*time.Second+d)
			unheld(t, b, "a", "b")

			var ends endings
			held := acquire(t, other.Locker, "z")
			go func() {
				time.Sleep(time.Minute)
				release(t, held)
			}()
			err = r.DoAll(background, []string{"a", "m", "z"}, func(ctx context.Context) error {
				ends.none(t)
				for _, lk := range holdfast.Held(ctx)[1:] { // z has the short lease of a grant
					if left := time.Until(lk.Deadline()); left != d {
						t.Errorf("%s ends in %v", lk.Key(), left)
					}
				}
				work(ctx, reports, 3*time.Second)
				fine(t, ctx.Err())
				began := time.Now()
				<-ctx.Done()
				took(t, began, d)
				return nil
			}, holdfast.WithProgress(d), ends.trace())
			wantIs(t, err, holdfast.ErrLost, holdfast.ErrNoProgress)
			ends.told(t, 3)
			unheld(t, b, "a", "m", "z")
		}
		// A lock that the context holds by another handle has its own time.
		outer := acquire(t, r.Locker, "a", holdfast.WithProgress(d))
		time.Sleep(d / 2)
		err := r.DoAll(outer.Context(background), []string{"a", "b"}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, holdfast.WithProgress(time.Hour), holdfast.WithReentrancy())
		wantIs(t, err, holdfast.ErrNoProgress)
		stalled(t, outer)
		wantIs(t, outer.Release(background), holdfast.ErrNoProgress)
	}, holdfast.WithTTL(time.Minute))
}

// A leader that hangs steps down.
func TestLeaderThatHangs(t *testing.T) {
	const d = 30 * time.Second
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var live atomic.Int32
		ctx, cancel := context.WithCancel(background)
		one, two := newReplica(t, b), newReplica(t, b)
		ended := make(chan time.Time, 1)
		first := leading(ctx, one, &live, func(ctx context.Context) error {
			if len(ended) > 0 {
				return untilEnd(ctx)
			}
			work(ctx, 10, d-1)
			<-ctx.Done()
			wantIs(t, context.Cause(ctx), holdfast.ErrLost, holdfast.ErrNoProgress)
			ended <- time.Now()
			return nil
		}, holdfast.WithProgress(d))
		next := make(chan time.Time, 1)
		second := leading(ctx, two, &live, func(ctx context.Context) error {
			next <- time.Now()
			return untilEnd(ctx)
		})
		if waited := (<-next).Sub(<-ended); waited < 0 || waited > 15*time.Second {
			t.Errorf("the next leader began after %v", waited)
		}
		cancel()
		wantIs(t, <-first, context.Canceled)
		wantIs(t, <-second, context.Canceled)
	})
}

// A report costs nothing but time, and no command.
func TestProgressCostsNothing(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock, plain := acquire(t, r.Locker, "a", holdfast.WithProgress(time.Second)), acquire(t, r.Locker, "b")
		ctx := plain.Context(lock.Context(background))
		b.ResetCommands()
		if n := testing.AllocsPerRun(1000, func() { holdfast.Progress(ctx) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		sent(t, b, 0)
		release(t, plain)
		release(t, lock)
	})
}
