package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// solos are how the uncontended cycle is measured.
var solos = []struct {
	goroutines int
	ample      bool // as many connections as goroutines, not go-redis' default
}{{1, false}, {8, false}, {64, false}, {64, true}}

// keysEach is how many keys a goroutine takes in turn. One that takes a key again at once is rare, and would wait for a release
// that is still on its way.
const keysEach = 8

// settle is longer than a release is on its way.
const settle = 20 * time.Millisecond

// spin is one measurement of one contender without contention.
type spin struct {
	rate     float64 // cycles per second
	p50, p99 float64 // µs
	allocs   float64 // per cycle, as are all below
	bytes    float64
	client   float64 // µs of the processors that this process used
	machine  float64 // and with it the server
	commands float64 // sent by the client
	inside   float64 // called by scripts
	server   float64 // µs that Redis spent on the commands sent
	failures int
	reason   string
}

func (s spin) trouble() (int, string) { return s.failures, s.reason }

var spinColumns = []column[spin]{
	typical("cycles/s", 0, func(s spin) float64 { return s.rate }),
	ratio("ratio", func(s spin) float64 { return s.rate }),
	typical("p50 µs", 0, func(s spin) float64 { return s.p50 }),
	typical("p99 µs", 0, func(s spin) float64 { return s.p99 }),
	typical("allocs", 1, func(s spin) float64 { return s.allocs }),
	typical("bytes", 0, func(s spin) float64 { return s.bytes }),
	typical("client µs", 1, func(s spin) float64 { return s.client }),
	typical("server µs", 1, func(s spin) float64 { return s.machine - s.client }),
	ratio("CPU ratio", func(s spin) float64 { return s.machine }),
	typical("commands", 2, func(s spin) float64 { return s.commands }),
	typical("in scripts", 2, func(s spin) float64 { return s.inside }),
	typical("Redis µs", 1, func(s spin) float64 { return s.server }),
	failed[spin](),
}

const spinLegend = "A cycle is one acquire and one release. ratio: of cycles/s to the first line's. " +
	"allocs, bytes, client µs and server µs (their processor time), commands (sent by the client), in scripts (commands that scripts " +
	"called) and Redis µs (the server's time for the commands sent) are per cycle. CPU ratio: of the processor time of both to " +
	"the first line's. rueidislock has a client of its own, " +
	"with one connection. client: how that of the others is set up."

// farther is how much round-trip time the part "far" adds: that of a network, where loopback has next to none.
const farther = 500 * time.Microsecond

// far measures the uncontended cycle where the server is farther away.
func (p plan) far(ctx context.Context, near *server) (table, error) {
	relay, err := startRelay(ctx, near.addr, farther)
	if err != nil {
		return table{}, err
	}
	defer relay.close()
	t, err := p.cycles(ctx, &server{addr: relay.addr})
	t.Title = fmt.Sprintf("As above, with %v of round-trip time added. %s", farther, t.Title)
	return t, err
}

// cycles measures the uncontended cycle.
func (p plan) cycles(ctx context.Context, server *server) (table, error) {
	var rows []row[spin]
	for _, s := range solos {
		pool, named := 0, fmt.Sprintf("%d (default)", 10*runtime.GOMAXPROCS(0))
		if s.ample {
			pool, named = p.pool, fmt.Sprint(p.pool)
		}
		for _, client := range clients {
			group, err := p.solo(ctx, newTargetWith(server.addr, pool, client.timeouts), s.goroutines, named, client.name)
			if err != nil {
				return table{}, err
			}
			rows = append(rows, group...)
		}
	}
	return tabulate(fmt.Sprintf("Acquire and release, each goroutine with %d keys of its own in turn; medians of %d rounds of %v.", keysEach, p.rounds, p.duration),
		[]string{"n", "connections", "client", ""}, spinColumns, rows, spinLegend), nil
}

func (p plan) solo(ctx context.Context, t *target, goroutines int, connections, client string) ([]row[spin], error) {
	defer t.close()
	m := newMeter(t, goroutines)
	open := make([]waiter, len(soloists))
	for i, r := range soloists {
		w, err := r.open(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		defer w.close()
		open[i] = w
		// Warm: connections, the script cache, and room for the latencies.
		if _, err := m.measure(ctx, r, w, p.duration/2); err != nil {
			return nil, err
		}
	}
	return interleave(p.rounds, names(soloists), func(i int) (spin, error) {
		return m.measure(ctx, soloists[i], open[i], p.duration)
	}, goroutines, connections, client)
}

// meter measures with a fixed number of goroutines. It keeps its memory from one measurement to the next, so
// that what it allocates itself does not count.
type meter struct {
	target *target
	keys   [][keysEach]string
	logs   []cycleLog // by goroutine
	all    []float64
}

type cycleLog struct {
	took     []float64 // µs
	failures int
	reason   string
}

func newMeter(t *target, n int) *meter {
	m := &meter{target: t, keys: make([][keysEach]string, n), logs: make([]cycleLog, n)}
	for i := range m.keys {
		for k := range m.keys[i] {
			m.keys[i][k] = fmt.Sprintf("bench:%d:%d", i, k)
		}
	}
	return m
}

func (m *meter) measure(ctx context.Context, r rival, w waiter, d time.Duration) (s spin, err error) {
	if err := m.target.resetStats(ctx); err != nil {
		return s, err
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	servers, err := m.target.processorTime(ctx)
	if err != nil {
		return s, err
	}
	used := processorTime()
	elapsed := m.spin(ctx, w, d)
	time.Sleep(settle) // or the next one would have the releases that nobody waited for
	used = processorTime() - used
	later, err := m.target.processorTime(ctx)
	if err != nil {
		return s, err
	}
	runtime.ReadMemStats(&after)
	stats, err := m.target.stats(ctx)
	if err != nil {
		return s, err
	}

	m.all = m.all[:0]
	for _, l := range m.logs {
		m.all = append(m.all, l.took...)
		s.failures += l.failures
		if l.reason != "" {
			s.reason = l.reason
		}
	}
	slices.Sort(m.all)
	cycles := float64(len(m.all))
	sent, inside := stats.split(r.sends)
	s.rate = cycles / elapsed.Seconds()
	s.p50, s.p99 = quantile(m.all, 0.50), quantile(m.all, 0.99)
	s.allocs = float64(after.Mallocs-before.Mallocs) / cycles
	s.bytes = float64(after.TotalAlloc-before.TotalAlloc) / cycles
	s.client = used * 1e6 / cycles
	s.machine = s.client + (later-servers)*1e6/cycles
	s.commands = float64(sent.calls) / cycles
	s.inside = float64(inside.calls) / cycles
	s.server = float64(sent.usec) / cycles
	return s, ctx.Err()
}

// spin has every goroutine cycle on its own keys for d, and at least once.
func (m *meter) spin(ctx context.Context, w waiter, d time.Duration) time.Duration {
	var wg sync.WaitGroup
	began := time.Now()
	for i, keys := range m.keys {
		l := &m.logs[i]
		*l = cycleLog{took: l.took[:0]}
		wg.Go(func() {
			for start := began; start.Sub(began) < d || len(l.took) == 0 && l.failures == 0; {
				if err := cycle(ctx, w, keys[len(l.took)%keysEach]); err != nil {
					l.failures, l.reason = l.failures+1, err.Error()
					time.Sleep(time.Millisecond) // so that what fails at once does not spin
					start = time.Now()
					continue
				}
				now := time.Now()
				l.took = append(l.took, micros(now.Sub(start)))
				start = now
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// cycle takes a lock that is free and releases it. What waiting adds to a peer's call is left out.
func cycle(ctx context.Context, w waiter, key string) error {
	lock, err := takeFree(ctx, w, key)
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}

func takeFree(ctx context.Context, w waiter, key string) (held, error) {
	if ours, ok := w.(ours); ok {
		return ours.acquire(ctx, key)
	}
	return w.try(ctx, key)
}
