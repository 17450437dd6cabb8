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

// With its header of 8 bytes it has to fit in 704, lest the allocator takes 768 for each held lock.
func TestAllocationsOfAHeldLockFitTheirClass(t *testing.T) {
	if n := holdfast.Whole + 8; n > 704 && strconv.IntSize == 64 {
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
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			cycle(100)
			const n = 2000
			each := math.Inf(1)
			for range 3 { // something else may be under way in this process
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				cycle(n)
				runtime.ReadMemStats(&after)
				each = min(each, float64(after.Mallocs-before.Mallocs)/n)
			}
			if each >= 13 {
				t.Errorf("%.1f allocations per acquire and release, want 12", each)
			} else {
				t.Logf("%.2f allocations", each)
			}
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
	const n = 20_000
	each := math.Inf(1)
	for range 3 { // something else may be under way in this process
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		turns(n)
		runtime.ReadMemStats(&after)
		each = min(each, float64(after.Mallocs-before.Mallocs)/n)
	}
	if each >= 3 {
		t.Errorf("%.2f allocations for each that is handed the lock, want 2", each)
	} else {
		t.Logf("%.2f allocations", each)
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
	if each := float64(heap()-before) / (n - 100); each > 1024 { // the size of maps goes in steps
		t.Errorf("a held lock keeps %.0f bytes", each)
	} else {
		t.Logf("%.0f bytes each", each)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 10 {
		t.Errorf("%d goroutines for %d locks", more, n)
	}
	for _, lock := range locks {
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// heap is how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the first leaves what pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
