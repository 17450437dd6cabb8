package holdfast_test

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
)

// Several processes share locks and ticks on five masters under random faults, from a seed: core/redlock/README.md tells what
// is checked, and how it was seen to fail. SEED runs one alone and tells what happened; see seeds.
func TestRedLockSimulation(t *testing.T) {
	alone := os.Getenv("SEED") != "" && os.Getenv("HOLDFAST_SCHEDULES")+os.Getenv("HOLDFAST_SOAK") == ""
	next, stop := iter.Pull(seeds(t, 10))
	defer stop()
	var mu sync.Mutex // guards next, and what follows
	var sum counts
	ran := 0
	t.Run("seeds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for {
					mu.Lock()
					seed, ok := next()
					mu.Unlock()
					if !ok {
						return
					}
					c := worldOf(t, seed, alone)
					mu.Lock()
					sum.add(c)
					ran++
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d schedules: %+v", ran, sum)
	if ran >= 40 && (sum.Served < sum.Calls/4 || sum.Lost == 0 || sum.Won < sum.Claims/10 || sum.Extended == 0 || sum.Restarts == 0) {
		t.Error("that is a simulation of nothing")
	}
}

type counts struct {
	Calls, Served, Lost, Extended, Claims, Won, Faults, Restarts, Excused int
}

func (c *counts) add(o counts) {
	c.Calls += o.Calls
	c.Served += o.Served
	c.Lost += o.Lost
	c.Extended += o.Extended
	c.Claims += o.Claims
	c.Won += o.Won
	c.Faults += o.Faults
	c.Restarts += o.Restarts
	c.Excused += o.Excused
}

// worldOf runs one seed.
func worldOf(t *testing.T, seed uint64, verbose bool) counts {
	w := &world{seed: seed, rnd: rand.New(rand.NewPCG(seed, 11)), won: map[string]int{}}
	over := false
	defer func() {
		if !over { // a panic, of which the stacks would not tell the seed
			fmt.Fprintf(os.Stderr, "SEED=%d\n", seed)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w.t, w.began, w.verbose, w.mu = t, time.Now(), verbose, make(semaphore, 1)
		w.run()
		synctest.Wait()
	})
	over = true
	if verbose {
		t.Log(w.timeline())
	}
	return w.counts
}

type world struct {
	t       *testing.T
	seed    uint64
	rnd     *rand.Rand // of the schedule: only for the goroutine that runs it
	began   time.Time
	verbose bool
	big     bool

	quarantine, longest time.Duration
	ms                  masters
	nodes               []*nodeState
	vs                  []*voter
	all                 sync.WaitGroup

	mu    semaphore // guards what follows; see simulation
	locks map[string]*history
	won   map[string]int
	jumps []time.Time // of clocks forward, by more than the margin for it

	onGrant func() // next time that somebody is served

	lines  []string
	linesM sync.Mutex
	failed atomic.Bool
	counts
}

// history is what became known of one key.
type history struct {
	live []*owned
	past []*owned
	last int64
}

type owned struct {
	*holdfast.Lock
	asked time.Time
	over  bool
}

func (w *world) millis(n int) time.Duration { return time.Duration(w.rnd.IntN(n)+1) * time.Millisecond }

func (w *world) one(n int) bool { return w.rnd.IntN(n) == 0 }

func pick[T any](w *world, of ...T) T { return of[w.rnd.IntN(len(of))] }

func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%9.3fs  ", time.Since(w.began).Seconds()) + fmt.Sprintf(format, args...)
	w.linesM.Lock()
	w.lines = append(w.lines, line)
	w.linesM.Unlock()
}

func (w *world) timeline() string {
	w.linesM.Lock()
	defer w.linesM.Unlock()
	return "what happened:\n" + strings.Join(w.lines, "\n")
}

// fail reports the first violation with all that led to it.
func (w *world) fail(format string, args ...any) {
	w.note("FAILURE: "+format, args...)
	if !w.failed.Swap(true) {
		w.t.Errorf("SEED=%d: %s\n%s", w.seed, fmt.Sprintf(format, args...), w.timeline())
	}
}

func (w *world) run() {
	w.setUp()
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(over) })
	switch w.rnd.IntN(12) {
	case 0, 1:
		w.lapse()
	case 2, 3:
		w.raise()
	case 4:
		w.wake()
	default:
		w.mix()
	}
	time.Sleep(w.millis(1000))
	w.heal()
	w.all.Wait()
	w.note("all calls are over")
	for _, v := range w.vs {
		shutdown(w.t, v.Locker)
	}
	time.Sleep(500 * time.Millisecond)
	close(over)
	watching.Wait()
	w.empty(false)
	time.Sleep(5 * time.Minute)
	w.empty(true)
}

// mix is calls and faults as they come.
func (w *world) mix() {
	within, calls, faults := 400*time.Millisecond, 2+w.rnd.IntN(2), 1+w.rnd.IntN(3)
	if w.big = w.one(20); w.big { // most are small, so that there are many
		within, calls, faults = 1500*time.Millisecond, 6+w.rnd.IntN(6), w.rnd.IntN(8)
	}
	w.wave(within, calls)
	for range faults {
		time.Sleep(w.millis(250))
		w.fault()
	}
	if w.Restarts == 0 {
		return
	}
	// Once more about when those that started anew vote again.
	time.Sleep(max(0, w.quarantine-time.Duration(w.rnd.IntN(2500))*time.Millisecond))
	w.wave(2500*time.Millisecond, 1+w.rnd.IntN(2))
	if w.one(4) {
		time.Sleep(w.millis(600))
		w.fault()
	}
}

// empty looks for keys that nobody removed, or that did not expire.
func (w *world) empty(all bool) {
	for i, m := range w.ms {
		w.nodes[i].set(m)
		keys := m.Redis.Keys()
		if all && len(keys) > 0 {
			w.fail("left on node %d: %v", i, keys)
		}
		for _, key := range keys {
			if w.locks[key] != nil {
				w.fail("%q is still held on node %d", key, i)
			}
		}
	}
}

// wave makes calls that begin within d from now.
func (w *world) wave(d time.Duration, calls int) {
	for range calls {
		if w.one(6) {
			w.claim(d)
		} else {
			w.call(d)
		}
	}
}

// call lets a process take a lock at a random moment and hold it for a random time.
func (w *world) call(within time.Duration) {
	n := w.rnd.IntN(len(w.vs))
	v := w.vs[n]
	key := "k"
	if w.one(5) {
		key = "other"
	}
	start, limit, hold := time.Duration(w.rnd.Int64N(int64(within))), w.millis(2000), w.millis(60)
	if w.big {
		limit *= 2
	}
	switch w.rnd.IntN(8) {
	case 0, 1, 2:
		hold = w.millis(900)
	case 3:
		hold = w.millis(int(w.longest.Milliseconds()) + 1000)
	}
	cut := time.Duration(0)
	if w.one(10) {
		cut = w.millis(200) // cancelled, before or while it holds
	}
	take, what := v.Acquire, "Acquire"
	var opts []holdfast.CallOption
	switch w.rnd.IntN(12) {
	case 0, 1:
		take, what = v.TryAcquire, "TryAcquire"
	case 2:
		opts, what = append(opts, holdfast.WithWait(w.millis(500))), "Acquire with a wait"
	case 3, 4, 5:
		opts, what = append(opts, holdfast.WithoutRenewal()), "Acquire without renewal"
	case 6:
		opts, what = append(opts, holdfast.WithTTL(200*time.Millisecond), holdfast.WithMaxHold(w.millis(3000)+200*time.Millisecond)), "Acquire with a maximal hold"
	case 7:
		opts, what = append(opts, holdfast.WithTTL(300*time.Millisecond)), "Acquire for 300ms"
	}
	extend := time.Duration(-1)
	if w.one(5) {
		extend = time.Duration(w.rnd.Int64N(int64(hold)))
	}
	id := w.Calls
	w.Calls++
	w.all.Go(func() {
		time.Sleep(start)
		ctx, cancel := context.WithTimeout(background, limit)
		defer cancel()
		end := time.Now().Add(limit)
		if cut > 0 {
			end = time.Now().Add(min(limit, cut))
			time.AfterFunc(cut, cancel)
		}
		asked := time.Now()
		w.note("call %d: process %d: %s(%q)", id, n, what, key)
		lock, err := take(ctx, key, opts...)
		if late := time.Since(end); late > 0 {
			w.fail("call %d returned %v after its context", id, late)
		}
		if err != nil {
			w.note("call %d: %v", id, short(err))
			if !isOf(err, holdfast.ErrNotAcquired, holdfast.ErrUnavailable) {
				w.fail("call %d: %v", id, err)
			}
			return
		}
		w.serve(id, key, lock, asked)
		rest := hold
		if extend >= 0 && w.sleep(lock, extend) {
			rest -= extend
			asked0 := time.Now()
			err := lock.Extend(ctx, 2*time.Second)
			w.note("call %d: Extend: %v", id, short(err))
			if late := time.Since(end); late > 0 && asked0.Before(end) {
				w.fail("call %d: Extend returned %v after its context", id, late)
			}
			if err == nil {
				w.mu.Lock()
				w.Extended++
				w.mu.Unlock()
			}
		}
		w.sleep(lock, rest)
		w.end(key, lock)
		err = lock.Release(background)
		w.note("call %d: released: %v", id, short(err))
		if err != nil && !isOf(err, holdfast.ErrLost, holdfast.ErrUnavailable) {
			w.fail("call %d: release: %v", id, err)
		}
	})
}

// sleep holds a lock for d. It returns false when it was lost.
func (w *world) sleep(lock *holdfast.Lock, d time.Duration) bool {
	lost := make(chan struct{})
	stop := context.AfterFunc(lock.Context(background), func() { close(lost) })
	defer stop()
	select {
	case <-time.After(d):
		return true
	case <-lost:
		return holdfast.Left(lock) > 0 // only its context ended
	}
}

// claim has a process ask for a tick.
func (w *world) claim(within time.Duration) {
	start, limit := time.Duration(w.rnd.Int64N(int64(within))), w.millis(1500)
	ahead := w.millis(200)
	for range 1 + w.rnd.IntN(2) {
		n := w.rnd.IntN(len(w.vs))
		v := w.vs[n]
		start := start + w.millis(20)
		w.Claims++
		w.all.Go(func() {
			time.Sleep(start)
			at := time.Now().Add(ahead).Truncate(250 * time.Millisecond)
			ctx, cancel := context.WithTimeout(background, limit)
			defer cancel()
			asked := time.Now()
			ok, err := tick.Claim(ctx, v.Locker, "job", at, tick.WithWindow(10*time.Second, 2*time.Second))
			if late := time.Since(asked) - limit; late > 0 {
				w.fail("Claim returned %v after its context", late)
			}
			when := at.Sub(w.began)
			w.note("process %d: claim of tick %v: %v, %v", n, when, ok, short(err))
			if err != nil && !isOf(err, holdfast.ErrUnavailable, tick.ErrWindow) {
				w.fail("claim: %v", err)
			}
			if !ok {
				return
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.Won++
			if w.won[when.String()]++; w.won[when.String()] > 1 {
				w.fail("tick %v was claimed twice", when)
			}
		})
	}
}
