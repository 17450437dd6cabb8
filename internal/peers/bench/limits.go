package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
	"golang.org/x/sync/semaphore"
)

// host is a way to let several in together, before the race.
type host struct {
	name  string
	sends []string // as in rival
	// open returns how the Lockers of one measurement are opened. Up to limit hold the lock together, readers without an end.
	open func(limit int) func(*target) (waiter, error)
}

// readers is no limit.
const readers = math.MaxInt32

// hosts let in up to a limit, in turns. The first one is what the others are compared with. The last one is for one process: no
// lock in Redis can be as quick.
var hosts = []host{
	{us, sentByHoldfast, openLimit()},
	{peers.RedissonPermits.Name, []string{"evalsha", "eval", "subscribe", "unsubscribe", "ping"}, openSemaphore(peers.RedissonPermits)},
	// It polls every 10 ms, as by default.
	{peers.RedisSemaphore.Name, []string{"evalsha", "eval", "zrem"}, openSemaphore(peers.RedisSemaphore)},
	inProcess,
}

var inProcess = host{"x/sync/semaphore (one process)", nil, openInProcess}

// readingHosts have readers and a writer, but for the second one, in which all take turns as writers.
var readingHosts = []host{
	{us, sentByHoldfast, openLimit()},
	{"holdfast (mutex)", sentByHoldfast, func(int) func(*target) (waiter, error) { return openHoldfast() }},
	inProcess,
}

func openLimit(opts ...holdfast.Option) func(int) func(*target) (waiter, error) {
	return func(limit int) func(*target) (waiter, error) {
		return func(t *target) (waiter, error) {
			option := holdfast.WithShared()
			if limit != readers {
				option = holdfast.WithLimit(limit)
			}
			locker, err := holdfast.New(t.rdb, append([]holdfast.Option{holdfast.WithTTL(lease)}, opts...)...)
			return ours{locker, t.rdb, []holdfast.CallOption{option}}, err
		}
	}
}

func openSemaphore(lib *peers.Library) func(int) func(*target) (waiter, error) {
	return func(limit int) func(*target) (waiter, error) {
		return openPeer(lib, peers.Settings{Limit: limit})
	}
}

// weighted is one semaphore for all Lockers of a measurement.
type weighted struct {
	*semaphore.Weighted
	limit int64
}

func openInProcess(limit int) func(*target) (waiter, error) {
	w := weighted{semaphore.NewWeighted(int64(limit)), int64(limit)}
	return func(*target) (waiter, error) { return w, nil }
}

func (w weighted) try(context.Context, string) (held, error) {
	if !w.TryAcquire(1) {
		return nil, peers.ErrHeld
	}
	return place{w, 1}, nil
}

func (w weighted) acquire(ctx context.Context, _ string) (held, error) {
	return place{w, 1}, w.Acquire(ctx, 1)
}

func (w weighted) alone(ctx context.Context, _ string) (held, error) {
	return place{w, w.limit}, w.Acquire(ctx, w.limit)
}

func (w weighted) ping(context.Context) error { return nil }

func (w weighted) close() error { return nil }

type place struct {
	weighted
	weight int64
}

func (p place) Release(context.Context) error {
	p.Weighted.Release(p.weight)
	return nil
}

// alone takes the lock as its only holder.
func (o ours) alone(ctx context.Context, key string) (held, error) {
	return found(o.locker.Acquire(ctx, key))
}

// party is who wants the lock.
type party struct {
	limit      int
	goroutines int // the first one is the writer, where the limit is readers
	lockers    int
	work       time.Duration // of each holder
}

// parties are one guest that nobody disturbs, and crowds of several Lockers.
func (p plan) parties() (all []party) {
	const lockers, work = 8, time.Millisecond
	for _, limit := range []int{1, 5} {
		all = append(all, party{limit, 1, 1, 0})
	}
	for _, n := range p.choose([]int{16, 64, 256}) {
		for _, limit := range []int{1, 5, 50} {
			if limit < n {
				all = append(all, party{limit, n, min(lockers, n), work})
			}
		}
	}
	return append(all, party{readers, 64, lockers, work})
}

func (s party) labels() []any {
	if s.limit == readers {
		return []any{"readers, 1 writer", s.goroutines}
	}
	return []any{s.limit, s.goroutines}
}

// turnout is one measurement of one host.
type turnout struct {
	score
	least, middle, most float64 // turns of the goroutines
	writer              float64 // turns of the writer
	beyond              int     // how often more were inside than may be
}

var turnoutColumns = []column[turnout]{
	typical("acquires/s", 0, func(t turnout) float64 { return t.acquires }),
	ratio("ratio", func(t turnout) float64 { return t.acquires }),
	typical("hand-overs/s", 0, func(t turnout) float64 { return t.handOvers }),
	typical("p50 µs", 1, func(t turnout) float64 { return t.p50 }),
	typical("p99 µs", 0, func(t turnout) float64 { return t.p99 }),
	typical("longest wait ms", 1, func(t turnout) float64 { return t.worst / 1e3 }),
	typical("least", 0, func(t turnout) float64 { return t.least }),
	typical("median", 0, func(t turnout) float64 { return t.middle }),
	typical("most", 0, func(t turnout) float64 { return t.most }),
	typical("of the writer", 0, func(t turnout) float64 { return t.writer }),
	typical("commands", 2, func(t turnout) float64 { return t.commands }),
	typical("script µs", 1, func(t turnout) float64 { return t.script }),
	failed[turnout](),
	total("beyond", func(t turnout) int { return t.beyond }),
}

const turnoutLegend = "limit: how many may hold the lock together. ratio: of acquires/s to the first line's. A hand-over is an acquisition " +
	"by another goroutine than the one whose release made room for it; its latency runs from before that release until the next holder " +
	"has the lock. least, median, most: turns of a goroutine in a round. commands: sent by the clients, for each acquisition. beyond: " +
	"how often more were inside than the limit allows. Redisson's permits and redis-semaphore are their algorithms, written in Go over " +
	"the same client; the one polls every 10 ms. holdfast (mutex): all 64 take turns."

// limits measures locks that several may hold together.
func (p plan) limits(ctx context.Context, s *server) (table, error) {
	t := newTarget(s.addr, 4)
	defer t.close()
	var rows []row[turnout]
	for _, of := range p.parties() {
		hosts := hosts
		if of.limit == readers {
			hosts = readingHosts
		}
		var names []string
		for _, h := range hosts {
			names = append(names, h.name)
		}
		group, err := interleave(p.rounds, names, func(i int) (turnout, error) {
			return p.visit(ctx, t, of, hosts[i])
		}, of.labels()...)
		if err != nil {
			return table{}, err
		}
		rows = append(rows, group...)
	}
	title := fmt.Sprintf("Goroutines of up to 8 Lockers, with a client each, take a lock that several may hold together, and each holder works for "+
		"1 ms; one goroutine works for nothing. Medians of %d rounds of %v.", p.rounds, p.duration)
	return tabulate(title, []string{"limit", "goroutines", ""}, turnoutColumns, rows, turnoutLegend), nil
}

// visit is one measurement.
func (p plan) visit(ctx context.Context, t *target, of party, h host) (_ turnout, err error) {
	if err := t.rdb.FlushAll(ctx).Err(); err != nil {
		return turnout{}, err
	}
	r := rival{name: h.name, sends: h.sends, open: h.open(of.limit)}
	l, err := openLockers(ctx, r, t.addr, of.lockers, p.pool)
	if err != nil {
		return turnout{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	runtime.GC()

	inside, stop := context.WithTimeout(ctx, endless)
	defer stop()
	diaries, guests := make([]diary, of.goroutines), sync.WaitGroup{}
	for i := range diaries {
		guests.Go(func() { of.attend(inside, l.waiters, i, &diaries[i]) })
	}
	var sent stats
	err = pause(ctx, min(p.duration/3, 250*time.Millisecond)) // as in bout
	var from, to int64
	if err == nil {
		from, to, err = t.watch(ctx, p.duration, &sent)
	}
	stop()
	guests.Wait()
	if err != nil {
		return turnout{}, err
	}
	result := of.judge(diaries, from, to)
	all, _ := sent.split(h.sends)
	result.commands = float64(all.calls) / result.seconds / result.acquires
	result.script = float64(sent["evalsha"].usec) / float64(sent["evalsha"].calls)
	return result, nil
}

// attend takes turns until ctx ends.
func (of party) attend(ctx context.Context, waiters []waiter, i int, d *diary) {
	w, always := waiters[i%len(waiters)], context.WithoutCancel(ctx)
	take := w.acquire
	if single, ok := w.(interface {
		alone(context.Context, string) (held, error)
	}); ok && of.limit == readers && i == 0 {
		take = single.alone
	}
	for ctx.Err() == nil {
		asked := now()
		lock, err := take(ctx, hot)
		acquired := now()
		if err != nil {
			if ctx.Err() == nil {
				d.failed(err)
				continue
			}
			d.Waiting = asked
			return
		}
		if of.work > 0 {
			time.Sleep(of.work)
		}
		released := now()
		if err := lock.Release(always); err != nil {
			d.failed(err)
		}
		d.Holds = append(d.Holds, hold{asked, acquired, released})
	}
}

// judge looks at what happened from from to to; at failures, and at how many were inside, also outside.
func (of party) judge(diaries []diary, from, to int64) turnout {
	t := turnout{score: score{seconds: float64(to-from) / 1e9, handOvers: math.NaN(), p50: math.NaN(), p99: math.NaN()}, writer: math.NaN()}
	taken := arrange(diaries)
	freed := slices.Clone(taken)
	slices.SortFunc(freed, func(a, b turn) int { return cmp.Compare(a.Released, b.Released) })
	turns := make([]float64, len(diaries))
	var latencies []float64
	writers, gone := 0, 0
	for i, in := range taken {
		for ; freed[gone].Released <= in.Acquired && gone < i; gone++ {
			if of.writes(freed[gone]) {
				writers--
			}
		}
		if of.writes(in) {
			writers++
		}
		if n := i + 1 - gone; n > of.limit || n > 1 && writers > 0 {
			t.beyond++
		}
		if in.Acquired < from || in.Acquired >= to {
			continue
		}
		turns[in.goroutine]++
		t.acquires++
		t.worst = max(t.worst, float64(in.Acquired-in.Asked)/1e3)
		// In the order of time, the first release makes room for the first that came after limit others, and so on.
		if before := i - of.limit; before >= 0 && freed[before].goroutine != in.goroutine {
			latencies = append(latencies, float64(in.Acquired-freed[before].Released)/1e3)
		}
	}
	for _, d := range diaries {
		t.failures += d.Failures
		t.reason = cmp.Or(t.reason, d.Reason)
		if d.Waiting != 0 {
			t.worst = max(t.worst, float64(to-d.Waiting)/1e3)
		}
	}
	if slices.Sort(latencies); len(latencies) > 0 {
		t.p50, t.p99 = quantile(latencies, 0.50), quantile(latencies, 0.99)
		t.handOvers = float64(len(latencies)) / t.seconds
	}
	t.acquires /= t.seconds
	if of.limit == readers {
		t.writer = turns[0]
	}
	t.middle = median(turns) // sorts them
	t.least, t.most = turns[0], turns[len(turns)-1]
	return t
}

func (of party) writes(t turn) bool { return of.limit == readers && t.goroutine == 0 }
