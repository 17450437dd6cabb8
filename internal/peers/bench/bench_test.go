package main

import (
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// BenchmarkCycle is the table's measurement for benchstat and for profiles:
//
//	go test -run - -bench 'Cycle/holdfast/goroutines=1$' -cpuprofile cpu.out
func BenchmarkCycle(b *testing.B) {
	t := newTestTarget(b)
	for _, r := range soloists[:3] {
		b.Run(r.name, func(b *testing.B) {
			for _, n := range []int{1, 8, 64} {
				b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) { benchmark(b, t, r, n) })
			}
		})
	}
}

func benchmark(b *testing.B, t *target, r rival, n int) {
	w, err := r.open(t)
	if err != nil {
		b.Fatal(err)
	}
	defer w.close()
	m := newMeter(t, n)
	m.spin(b.Context(), w, 0) // opens the connections
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, keys := range m.keys {
		share := (b.N + i) / n // adds up to b.N
		wg.Go(func() {
			for k := range share {
				if err := cycle(b.Context(), w, keys[k%keysEach]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkRedLock is the healthy part of the table of locks on several servers, with one goroutine.
func BenchmarkRedLock(b *testing.B) {
	servertest.Redis(b)
	c, err := startCluster(b.Context(), nodes, late)
	if err != nil {
		b.Fatal(err)
	}
	defer c.stop()
	for _, e := range takers {
		if e.healthy { // its servers would have to grow old
			continue
		}
		b.Run(e.name, func(b *testing.B) {
			t, err := e.open(c.addrs(situations[0]), 64)
			if err != nil {
				b.Fatal(err)
			}
			defer t.close()
			warm := takeTurns(b.Context(), situation{}, t, 1, 0)
			if warm[0].failures > 0 {
				b.Fatal(warm[0].reason)
			}
			b.ReportAllocs()
			for b.Loop() {
				lock, err := t.try(b.Context(), "bench")
				if err == nil {
					err = lock.Release(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
