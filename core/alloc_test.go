//go:build !race

package core_test

import (
	"runtime"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// What an acquire and its release allocate, about half of it go-redis: without the race detector, which adds to that.
// A Trace costs nothing where it has no hooks.
func TestServerAllocations(t *testing.T) {
	server := servertest.Redis(t)
	for name, opts := range map[string][]core.Option{"plain": nil, "with a trace": {core.WithTrace(&core.Trace{})}} {
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
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			cycle(n)
			runtime.ReadMemStats(&after)
			if each := float64(after.Mallocs-before.Mallocs) / n; each >= 15 {
				t.Errorf("%.1f allocations per acquire and release, want 14", each)
			} else {
				t.Logf("%.2f allocations", each)
			}
		})
	}
}
