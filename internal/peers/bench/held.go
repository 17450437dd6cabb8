package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Locks are held for so long that each is renewed several times. All renew after a third of the lease.
const (
	heldLease   = 9 * time.Second
	heldRenewal = heldLease / 3
	heldFor     = 2 * heldRenewal // within which each lock is renewed twice
)

// heldHands take the locks. Their connections are open before, so that those are no part of what a lock costs.
const heldHands = 64

// burden is what held locks cost while nothing happens to them.
type burden struct {
	goroutines float64 // of all locks together
	heap       float64 // bytes, for each lock
	stacks     float64 // likewise
	commands   float64 // per second
	client     float64 // share of one processor
	server     float64 // likewise
	failures   int     // locks that could not be taken or were lost
	reason     string
}

func (b burden) trouble() (int, string) { return b.failures, b.reason }

func (b burden) processors() float64 { return b.client + b.server }

var burdenColumns = []column[burden]{
	typical("goroutines", 0, func(b burden) float64 { return b.goroutines }),
	typical("heap bytes", 0, func(b burden) float64 { return b.heap }),
	typical("stack bytes", 0, func(b burden) float64 { return b.stacks }),
	typical("commands/s", 0, func(b burden) float64 { return b.commands }),
	typical("client CPU %", 1, func(b burden) float64 { return 100 * b.client }),
	typical("server CPU %", 1, func(b burden) float64 { return 100 * b.server }),
	typical("CPU %", 1, func(b burden) float64 { return 100 * b.processors() }),
	ratio("CPU ratio", burden.processors),
	typical("CPU µs each", 1, func(b burden) float64 { return 1e6 * b.processors() / b.commands }),
	failed[burden](),
}

const burdenLegend = "heap bytes and stack bytes are for each lock, beyond what the client had before. CPU %: of one processor, " +
	"of client and server together; ratio: to the first line's. each: for one command. failed: locks that could not be taken, or were lost."

// held measures locks that are held and renewed.
func (p plan) held(ctx context.Context, _ *server) (table, error) {
	var rows []row[burden]
	for _, n := range p.locks {
		var entries []keeperEntry
		var names []string
		for _, e := range keepers {
			if e.most == 0 || n <= e.most {
				entries, names = append(entries, e), append(names, e.name)
			}
		}
		group, err := interleave(p.rounds, names, func(i int) (burden, error) {
			return p.burden(ctx, entries[i], n)
		}, n)
		if err != nil {
			return table{}, err
		}
		rows = append(rows, group...)
	}
	return tabulate(fmt.Sprintf("Locks that are held for %v, with a lease of %v that is renewed every %v.",
		p.holding, heldLease, heldRenewal), []string{"locks", ""}, burdenColumns, rows, burdenLegend), nil
}

// burden measures one way to hold n locks, on a server of its own.
func (p plan) burden(ctx context.Context, e keeperEntry, n int) (b burden, err error) {
	server, err := startServer()
	if err != nil {
		return b, err
	}
	defer server.Close()
	watcher := newTarget(server.addr, 1)
	defer watcher.close()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "bench:" + strconv.Itoa(i)
	}
	k, err := e.open(ctx, server.addr)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, k.close()) }()

	if _, err := watcher.processorTime(ctx); err != nil { // opens its connection
		return b, err
	}
	if err := pause(ctx, min(p.holding/4, time.Second)); err != nil { // goroutines of the clients' starts end meanwhile
		return b, err
	}
	goroutines, heap, stacks := footprint()
	// They are taken over one renewal's time, so that they are due all the time, and not at once.
	reason, failures := take(ctx, k, keys, p.holding/2)
	if err := watcher.resetStats(ctx); err != nil {
		return b, err
	}
	before, err := watcher.processorTime(ctx)
	if err != nil {
		return b, err
	}
	used, began := processorTime(), time.Now()
	if err := pause(ctx, p.holding); err != nil {
		return b, err
	}
	elapsed := time.Since(began).Seconds()
	b.client = (processorTime() - used) / elapsed
	after, err := watcher.processorTime(ctx)
	if err != nil {
		return b, err
	}
	sent, err := watcher.stats(ctx)
	if err != nil {
		return b, err
	}
	commands, _ := sent.split(e.sends)
	b.commands, b.server = float64(commands.calls)/elapsed, (after-before)/elapsed
	lost := k.lost()
	if lost > 0 {
		reason = cmp.Or(reason, "locks were lost")
	}
	b.failures, b.reason = failures+lost, reason
	g, h, s := footprint()
	b.goroutines, b.heap, b.stacks = g-goroutines, (h-heap)/float64(n), (s-stacks)/float64(n)
	runtime.KeepAlive(keys)
	return b, nil
}

// footprint is what is in use when the garbage is gone.
func footprint() (goroutines, heap, stacks float64) {
	runtime.GC()
	runtime.GC() // what had a finalizer is gone after the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(runtime.NumGoroutine()), float64(m.HeapAlloc), float64(m.StackInuse)
}

// take has k take the locks on all keys within d, or as soon as it can.
func take(ctx context.Context, k keeper, keys []string, d time.Duration) (reason string, failures int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var next atomic.Int64
	began := time.Now()
	for range heldHands {
		wg.Go(func() {
			for i := next.Add(1); int(i) <= len(keys); i = next.Add(1) {
				time.Sleep(time.Until(began.Add(d * time.Duration(i-1) / time.Duration(len(keys)))))
				if err := k.hold(ctx, keys[i-1]); err != nil {
					mu.Lock()
					failures, reason = failures+1, err.Error()
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return reason, failures
}

// processorTime is what the server has used of the processors, in s.
func (t *target) processorTime(ctx context.Context) (float64, error) {
	info, err := t.rdb.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, fmt.Errorf("the server's processor time: %w", err)
	}
	sum := 0.0
	for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
		s, err := strconv.ParseFloat(strings.TrimSpace(field(info, name)), 64)
		if err != nil {
			return 0, fmt.Errorf("the server's processor time: %w", err)
		}
		sum += s
	}
	return sum, nil
}
