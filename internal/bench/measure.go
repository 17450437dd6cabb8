package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// goroutines are the degrees of concurrency that are measured.
var goroutines = []int{1, 8, 64}

// sample is one measurement of one contender.
type sample struct {
	rate     float64 // cycles per second
	p50, p99 time.Duration
	allocs   float64 // per cycle, as are all below
	bytes    float64
	commands float64 // sent by the client
	inside   float64 // called by scripts
	server   float64 // µs that Redis spent on the commands sent
}

// row is all measurements of one contender at one degree of concurrency.
type row struct {
	name       string
	goroutines int
	samples    []sample
	base       []sample // the first contender's, of the same rounds
}

// run measures all contenders. A round is short and measures each of them, every other round in the opposite
// order, so that a disturbance neither meets only one of them nor always the same.
func (p plan) run(ctx context.Context, t *target, entries []entry) ([]row, error) {
	open := make([]contender, len(entries))
	for i, e := range entries {
		c, err := e.open(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		defer c.close()
		open[i] = c
	}

	var rows []row
	for _, n := range goroutines {
		m := newMeter(t, n)
		group := make([]row, len(entries))
		for i, e := range entries {
			group[i] = row{name: e.name, goroutines: n}
			// Warm: connections, the script cache, and room for the latencies.
			if _, err := m.measure(ctx, e, open[i], p.duration); err != nil {
				return nil, err
			}
		}
		for round := range p.rounds {
			for k := range entries {
				i := k
				if round%2 == 1 {
					i = len(entries) - 1 - k
				}
				s, err := m.measure(ctx, entries[i], open[i], p.duration)
				if err != nil {
					return nil, err
				}
				group[i].samples = append(group[i].samples, s)
			}
		}
		for i := range group {
			group[i].base = group[0].samples
		}
		rows = append(rows, group...)
	}
	return rows, nil
}

// meter measures with a fixed number of goroutines. It keeps its memory from one measurement to the next, so
// that what it allocates itself does not count.
type meter struct {
	target    *target
	keys      []string
	latencies [][]time.Duration // by goroutine
	all       []time.Duration
}

func newMeter(t *target, n int) *meter {
	m := &meter{target: t, keys: make([]string, n), latencies: make([][]time.Duration, n)}
	for i := range m.keys {
		m.keys[i] = "bench:" + strconv.Itoa(i)
	}
	return m
}

func (m *meter) measure(ctx context.Context, e entry, c contender, d time.Duration) (sample, error) {
	if err := m.target.resetStats(ctx); err != nil {
		return sample{}, err
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	elapsed, err := m.spin(ctx, c, d)
	runtime.ReadMemStats(&after)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", e.name, err)
	}
	stats, err := m.target.stats(ctx)
	if err != nil {
		return sample{}, err
	}

	m.all = m.all[:0]
	for _, l := range m.latencies {
		m.all = append(m.all, l...)
	}
	slices.Sort(m.all)
	cycles := float64(len(m.all))
	sent, inside := stats.split(e.sends)
	return sample{
		rate:     cycles / elapsed.Seconds(),
		p50:      quantile(m.all, 0.50),
		p99:      quantile(m.all, 0.99),
		allocs:   float64(after.Mallocs-before.Mallocs) / cycles,
		bytes:    float64(after.TotalAlloc-before.TotalAlloc) / cycles,
		commands: float64(sent.calls) / cycles,
		inside:   float64(inside.calls) / cycles,
		server:   float64(sent.usec) / cycles,
	}, nil
}

// spin has every goroutine cycle on its own key for d, and at least once.
func (m *meter) spin(ctx context.Context, c contender, d time.Duration) (time.Duration, error) {
	var wg sync.WaitGroup
	failures := make([]error, len(m.keys))
	began := time.Now()
	for i, key := range m.keys {
		wg.Go(func() {
			took := m.latencies[i][:0]
			for start := time.Now(); ; {
				if failures[i] = c.cycle(ctx, key); failures[i] != nil {
					break
				}
				now := time.Now()
				took = append(took, now.Sub(start))
				start = now
				if now.Sub(began) >= d {
					break
				}
			}
			m.latencies[i] = took
		})
	}
	wg.Wait()
	return time.Since(began), errors.Join(failures...)
}

// quantile returns the smallest value of sorted, which must not be empty, that at least the share q of all does
// not exceed.
func quantile[T time.Duration | float64](sorted []T, q float64) T {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(i, 0)]
}
