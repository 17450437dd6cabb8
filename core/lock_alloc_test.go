//go:build !race

package holdfast_test

import (
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// With its header of 8 bytes it has to fit in 768, lest the allocator takes 896 for each held lock.
func TestAllocationsOfAHeldLockFitTheirClass(t *testing.T) {
	if n := holdfast.Whole + 8; n > 768 && strconv.IntSize == 64 {
		t.Errorf("%d bytes", n)
	}
}

// What an acquire and its release allocate, about half of it go-redis: without the race detector, which adds to that.
// A Trace costs nothing where it has no hooks.
func TestServerAllocations(t *testing.T) {
	server := servertest.Redis(t)
	for name, opts := range map[string][]holdfast.Option{"plain": nil, "with a trace": {holdfast.WithTrace(&holdfast.Trace{})}} {
		t.Run(name, func(t *testing.T) {
			l := newLocker(t, server.Client(), opts...)
			cycle := func(n int) {
				for range n {
					lock, err := l.Acquire(t.Context(), "k")
					if err == nil {
						err = lock.Release(t.Context())
					}
					must(t, err)
				}
			}
			cycle(100)
			allocates(t, 13, 2000, cycle)
		})
	}
}

// What a call allocates that is handed the lock by another one: the lock, and the hold behind it.
func TestServerAllocationsHandedOver(t *testing.T) {
	server := servertest.Redis(t)
	l := newLocker(t, server.Client(), holdfast.WithLocalHandover(250, time.Minute))
	ctx := t.Context()
	turns := func(n int) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range n / 8 {
					lock, err := l.Acquire(ctx, "k")
					if err == nil {
						runtime.Gosched() // for the others to queue
						err = lock.Release(ctx)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	turns(1000)
	allocates(t, 3, 20_000, turns)
}

// allocates checks that each of n cycles makes fewer than most allocations.
func allocates(t *testing.T, most float64, n int, cycles func(n int)) {
	t.Helper()
	each := math.Inf(1)
	for range 3 { // something else may be under way in this process
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		cycles(n)
		runtime.ReadMemStats(&after)
		each = min(each, float64(after.Mallocs-before.Mallocs)/float64(n))
	}
	if t.Logf("%.2f allocations each", each); each >= most {
		t.Errorf("want fewer than %v", most)
	}
}

// What a held lock that is renewed keeps in memory, its key aside, which is the caller's.
func TestServerAllocationsHeld(t *testing.T) {
	server := servertest.Redis(t)
	l := newLocker(t, server.Client(), holdfast.WithTTL(time.Hour)) // no renewal is under way when it is measured
	const n = 8000
	keys, locks := make([]string, n), make([]*holdfast.Lock, n)
	for i := range keys {
		keys[i] = holdfast.Key("invoice", strconv.Itoa(i))
	}
	hold := func(from, to int) {
		for i := from; i < to; i++ {
			var err error
			if locks[i], err = l.Acquire(t.Context(), keys[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	hold(0, 100)
	time.Sleep(200 * time.Millisecond) // for goroutines of connections and lanes to come to rest
	before, goroutines := heap(), runtime.NumGoroutine()
	hold(100, n)
	each := float64(heap()-before) / (n - 100)
	if t.Logf("%.0f bytes each", each); each > 1024 { // the size of maps goes in steps
		t.Error("a held lock keeps more than a kilobyte")
	}
	if more := runtime.NumGoroutine() - goroutines; more > 10 {
		t.Errorf("%d goroutines for %d locks", more, n)
	}
	for _, lock := range locks {
		release(t, lock)
	}
}
