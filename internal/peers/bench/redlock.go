package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

const nodes, late = 5, 50 * time.Millisecond

// situation is what is wrong with the servers.
type situation struct {
	name    string
	late    time.Duration // round trips to one of them take so much longer, or 0
	far     bool          // round trips to all of them take farther longer
	stopped int           // so many hang
	sizes   []int         // numbers of goroutines
	// rest is how long each goroutine pauses between two cycles. Without, those that do not wait for the slowest
	// server would gather commands to it until nothing is measured but the pools of connections.
	rest   time.Duration
	once   bool // no lock can be had: one try in each round
	rounds int  // at most; 0: as planned
}

var situations = []situation{
	{name: "all healthy", sizes: []int{1, 8}},
	{name: "all far", far: true, sizes: []int{1, 8}},
	{name: "one 50 ms late", late: late, sizes: []int{1, 8}, rest: 20 * time.Millisecond},
	{name: "two stopped", stopped: 2, sizes: []int{1, 8}, rest: 20 * time.Millisecond, rounds: 3},
	{name: "three stopped", stopped: 3, sizes: []int{1}, once: true, rounds: 3},
}

func (s situation) healthy() bool { return s.late == 0 && s.stopped == 0 && !s.far }

// spell is one measurement of one taker in one situation. Time is in µs.
type spell struct {
	lock50, lock99     float64 // also of tries that failed
	unlock50, unlock99 float64
	commands           float64 // that were sent to each server, per cycle
	server             float64 // that each server spent on those
	allocs             float64 // per cycle
	tries, failures    int
	reason             string // of one of them
}

func (s spell) trouble() (int, string) { return s.failures, s.reason }

var spellColumns = []column[spell]{
	typical("lock p50 µs", 0, func(s spell) float64 { return s.lock50 }),
	typical("lock p99 µs", 0, func(s spell) float64 { return s.lock99 }),
	ratio("lock ratio", func(s spell) float64 { return s.lock50 }),
	typical("unlock p50 µs", 0, func(s spell) float64 { return s.unlock50 }),
	typical("unlock p99 µs", 0, func(s spell) float64 { return s.unlock99 }),
	ratio("unlock ratio", func(s spell) float64 { return s.unlock50 }),
	typical("commands", 2, func(s spell) float64 { return s.commands }),
	typical("Redis µs", 0, func(s spell) float64 { return s.server }),
	typical("allocs", 0, func(s spell) float64 { return s.allocs }),
	total("tries", func(s spell) int { return s.tries }),
	failed[spell](),
}

const spellLegend = "A try is one acquire, and one release where it succeeded; with a late or stopped server each goroutine " +
	"rests for 20 ms between two. floor: SET NX PX to all at once, and on at the third reply. lock: also of tries that failed. " +
	"ratio: of the p50 to the first line's. commands: sent to each server, per try, also those that it was stopped for; " +
	"Redis µs: its time for them. allocs: of the process while it tries, per try. –: none."

// cluster is some independent servers.
type cluster struct {
	servers []*server
	targets []*target
	slow    *relay // before the last one
	far     []*relay
}

func startCluster(ctx context.Context, n int, late time.Duration) (c *cluster, err error) {
	c = &cluster{}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	for range n {
		s, err := startServer()
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, s)
		c.targets = append(c.targets, newTarget(s.addr, 4))
		r, err := startRelay(ctx, s.addr, farther)
		if err != nil {
			return nil, err
		}
		c.far = append(c.far, r)
	}
	c.slow, err = startRelay(ctx, c.servers[n-1].addr, late)
	return c, err
}

func (c *cluster) stop() {
	if c.slow != nil {
		c.slow.close()
	}
	for _, r := range c.far {
		r.close()
	}
	for i, s := range c.servers {
		_ = c.targets[i].close()
		s.Close()
	}
}

// addrs is where the servers are reached.
func (c *cluster) addrs(s situation) []string {
	var addrs []string
	for i, server := range c.servers {
		if s.far {
			addrs = append(addrs, c.far[i].addr)
		} else {
			addrs = append(addrs, server.addr)
		}
	}
	if s.late > 0 {
		addrs[len(addrs)-1] = c.slow.addr
	}
	return addrs
}

// sent counts what clients sent to all servers.
func (c *cluster) sent(ctx context.Context, sends []string) (n tally, err error) {
	for _, t := range c.targets {
		s, err := t.stats(ctx)
		if err != nil {
			return n, err
		}
		sent, _ := s.split(sends)
		n = n.plus(sent)
	}
	return n, nil
}

// settle waits until nothing is sent any more. By then all commands of a round have been counted, and the next
// taker has the servers for itself.
func (c *cluster) settle(ctx context.Context, s situation, sends []string) (n tally, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for last := (tally{calls: -1}); ; last = n {
		if n, err = c.sent(ctx, sends); err != nil || n == last {
			return n, err
		}
		if err := pause(ctx, 50*time.Millisecond+3*s.late); err != nil {
			return n, fmt.Errorf("the commands do not end: %w", err)
		}
	}
}

// redlock measures locks on several servers.
func (p plan) redlock(ctx context.Context, _ *server) (table, error) {
	c, err := startCluster(ctx, nodes, late)
	if err != nil {
		return table{}, err
	}
	defer c.stop()
	began := time.Now()
	var all []row[spell]
	for _, s := range slices.Backward(situations) { // the servers grow old enough for the first meanwhile
		if s.healthy() {
			// They tell their age in whole seconds.
			if err := pause(ctx, time.Until(began.Add(quarantine+time.Second))); err != nil {
				return table{}, err
			}
		}
		rows, err := p.endure(ctx, c, s)
		if err != nil {
			return table{}, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(rows, all...)
	}
	title := fmt.Sprintf("Locks on a majority of %d servers, a key for each goroutine; medians of %d rounds of %v (%d with "+
		"stopped servers).", nodes, p.rounds, p.duration, min(p.rounds, 3))
	return tabulate(title, []string{"servers", "n", ""}, spellColumns, all, spellLegend), nil
}

// endure measures all takers in one situation.
func (p plan) endure(ctx context.Context, c *cluster, s situation) ([]row[spell], error) {
	var entries []takerEntry
	var names []string
	for _, e := range p.takers {
		if !e.healthy || s.healthy() {
			entries, names = append(entries, e), append(names, e.name)
		}
	}
	open := make([]trier, len(entries))
	for i, e := range entries {
		t, err := e.open(c.addrs(s), p.pool)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		defer t.close()
		open[i] = t
		// Warm: connections and the script caches.
		if _, err := c.measure(ctx, situation{late: s.late, rest: s.rest}, e, t, 8, min(p.duration, 100*time.Millisecond)); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	rounds := p.rounds
	if s.rounds > 0 {
		rounds = min(rounds, s.rounds)
	}
	var all []row[spell]
	for _, n := range s.sizes {
		rows, err := interleave(rounds, names, func(i int) (spell, error) {
			return c.measure(ctx, s, entries[i], open[i], n, p.duration)
		}, s.name, n)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}

func (c *cluster) measure(ctx context.Context, s situation, e takerEntry, t trier, n int, d time.Duration) (sp spell, err error) {
	for _, t := range c.targets {
		if err := t.rdb.FlushAll(ctx).Err(); err != nil {
			return sp, err
		}
		if err := t.resetStats(ctx); err != nil {
			return sp, err
		}
	}
	runtime.GC()
	hung := c.servers[len(c.servers)-s.stopped:]
	defer func() {
		for _, s := range hung {
			err = errors.Join(err, s.Resume())
		}
	}()
	for _, s := range hung {
		if err := s.Pause(); err != nil {
			return sp, err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	logs := takeTurns(ctx, s, t, n, d)
	runtime.ReadMemStats(&after)
	for _, s := range hung {
		if err := s.Resume(); err != nil {
			return sp, err
		}
	}
	if w, ok := t.(interface{ wait() }); ok {
		w.wait()
	}
	sent, err := c.settle(ctx, s, e.sends)
	if err != nil {
		return sp, err
	}

	var locks, unlocks []float64
	for _, l := range logs {
		locks, unlocks = append(locks, l.locks...), append(unlocks, l.unlocks...)
		sp.failures += l.failures
		sp.reason = cmp.Or(sp.reason, l.reason)
	}
	slices.Sort(locks)
	slices.Sort(unlocks)
	sp.tries = len(locks)
	sp.lock50, sp.lock99 = quantile(locks, 0.50), quantile(locks, 0.99)
	sp.unlock50, sp.unlock99 = quantile(unlocks, 0.50), quantile(unlocks, 0.99)
	sp.commands = float64(sent.calls) / float64(len(c.servers)*sp.tries)
	sp.server = float64(sent.usec) / float64(len(c.servers)*sp.tries)
	sp.allocs = float64(after.Mallocs-before.Mallocs) / float64(sp.tries)
	return sp, ctx.Err()
}

// turnLog is what one goroutine saw.
type turnLog struct {
	locks, unlocks []float64 // µs
	failures       int
	reason         string
}

// takeTurns has n goroutines take and give back a key each for d, and at least once.
func takeTurns(ctx context.Context, s situation, t trier, n int, d time.Duration) []turnLog {
	logs := make([]turnLog, n)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range logs {
		l := &logs[i]
		if !s.once { // so that growing it costs no memory within the round
			l.locks, l.unlocks = make([]float64, 0, 1<<14), make([]float64, 0, 1<<14)
		}
		key := fmt.Sprint("bench:", i)
		wg.Go(func() {
			for {
				l.cycle(ctx, t, key)
				if s.once || time.Since(began) >= d || ctx.Err() != nil {
					return
				}
				if s.rest > 0 {
					_ = pause(ctx, s.rest)
				}
			}
		})
	}
	wg.Wait()
	return logs
}

func (l *turnLog) cycle(ctx context.Context, t trier, key string) {
	start := time.Now()
	lock, err := t.try(ctx, key)
	taken := time.Now()
	l.locks = append(l.locks, micros(taken.Sub(start)))
	if err == nil {
		err = lock.Release(ctx)
		l.unlocks = append(l.unlocks, micros(time.Since(taken)))
	}
	if err != nil {
		l.failures++
		l.reason = cmp.Or(l.reason, err.Error())
	}
}
