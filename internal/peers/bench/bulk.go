package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
)

// contender takes free locks while many calls come at once.
type contender struct {
	name  string
	sends []string // as in rival
	open  func(ttl time.Duration) func(*target) (waiter, error)
}

// contenders are measured in turns, the peers behind these. The first one is what the others are compared with.
var contenders = []contender{
	contenderBy(peers.Plain, sentBySetters),
	{us, sentByHoldfast, func(ttl time.Duration) func(*target) (waiter, error) { return openHoldfast(holdfast.WithTTL(ttl)) }},
}

func contenderBy(lib *peers.Library, sends []string) contender {
	name := lib.Name
	if lib == peers.Plain {
		name = bare
	}
	return contender{name, sends, func(ttl time.Duration) func(*target) (waiter, error) {
		return openPeer(lib, peers.Settings{Lease: ttl, NoLoop: true})
	}}
}

func contenderOf(name string) (contender, error) {
	i := slices.IndexFunc(contenders, func(c contender) bool { return c.name == name })
	if i < 0 {
		return contender{}, fmt.Errorf("nobody is called %q", name)
	}
	return contenders[i], nil
}

// bulkPlan is what the part "bulk" measures.
type bulkPlan struct {
	scenes     []string
	everyone   bool // peers as well where they only take time
	loads      []int
	stopLoads  []int
	stops      []time.Duration
	hangs      []time.Duration
	ttls       []time.Duration
	usedUp     time.Duration
	messages   int
	lead, tail time.Duration // before a stop, and after it
	tries      int           // of a rate that is not served, before the capacity counts as below it
}

func newBulkPlan() bulkPlan {
	return bulkPlan{
		scenes: sceneNames(), loads: []int{50, 80, 95, 200, 400}, stopLoads: []int{80, 95},
		stops: []time.Duration{80 * time.Millisecond, 2 * time.Second}, hangs: []time.Duration{10 * time.Second},
		ttls: []time.Duration{lease}, usedUp: time.Minute, messages: 100_000,
		lead: 1200 * time.Millisecond, tail: 3500 * time.Millisecond, tries: 3,
	}
}

// scene is one table of the part.
type scene struct {
	name    string
	measure func(b *bulk, ctx context.Context) (table, error)
}

// sceneNames are in the order of the report.
func sceneNames() (names []string) {
	for _, s := range scenes() {
		names = append(names, s.name)
	}
	return names
}

func scenes() []scene {
	return []scene{{"overload", (*bulk).overload}, {"stop", (*bulk).stop}, {"hang", (*bulk).hang}, {"flood", (*bulk).flood}, {"usedup", (*bulk).usedUp}}
}

// bulk measures what many calls do together. Capacities are found when they are first needed.
type bulk struct {
	plan
	capacities map[string]float64 // by client and contender
}

func (p plan) inBulk(ctx context.Context, each func(table) error) error {
	b := &bulk{plan: p, capacities: map[string]float64{}}
	for _, s := range scenes() {
		if !slices.Contains(p.bulk.scenes, s.name) {
			continue
		}
		t, err := s.measure(b, ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		t.Part = "bulk: " + s.name
		if err := each(t); err != nil {
			return err
		}
	}
	return nil
}

// outcome is one measurement of one contender under one load.
type outcome struct {
	rate, capacity float64
	all            window // from the first call to the last one measured
	before, after  window // a stop, with a second between it and the latter
	settled        window // from another second later on
	steady         window // when as many are inside as there will be
	early, late    window // its halves
	commands       int64  // executed from the end of a hang until it was quiet
	quiet          float64
}

func (o outcome) trouble() (int, string) { return 0, "" }

const megabyte = 1 << 20

// room is how many bytes more than by hand an outage may cost: 4 KB for each caller inside and 200 bytes for each call to undo.
func (o outcome) room() float64 {
	return 4096*float64(o.all.Inside) + min(200*float64(o.all.Failed), 32*megabyte)
}

// bounds is how many goroutines there may be beside those of the callers.
func bounds() float64 { return float64(2*10*runtime.GOMAXPROCS(0) + 50) }

func figure(name string, digits int, f func(outcome) float64) column[outcome] {
	return typical(name, digits, f)
}

// versus compares each measurement with that of the first contender in the same round, and takes the worst.
func versus(name string, digits int, f func(o, first outcome) float64) column[outcome] {
	return column[outcome]{head{name, digits}, func(r row[outcome]) float64 {
		most := math.Inf(-1)
		for i, o := range r.samples {
			most = max(most, f(o, r.first[i]))
		}
		return most
	}}
}

func worst(name string, digits int, f func(outcome) float64) column[outcome] {
	return versus(name, digits, func(o, _ outcome) float64 { return f(o) })
}

var (
	offeredColumns = []column[outcome]{
		figure("calls/s", 0, func(o outcome) float64 { return o.rate }),
		worst("missed", 0, func(o outcome) float64 { return float64(o.all.Missed) }),
	}
	footprintColumns = []column[outcome]{
		worst("inside", 0, func(o outcome) float64 { return float64(o.all.Inside) }),
		worst("goroutines", 0, func(o outcome) float64 { return float64(o.all.Goroutines) }),
		worst("beyond", 0, func(o outcome) float64 { return float64(o.all.Beyond) }),
		worst("of 2 x pool + 50", 2, func(o outcome) float64 { return float64(o.all.Beyond) / bounds() }),
		worst("RSS MB", 1, func(o outcome) float64 { return float64(o.all.RSS) / megabyte }),
		versus("of RSS allowed", 2, func(o, first outcome) float64 { return float64(o.all.RSS) / (float64(first.all.RSS) + o.room()) }),
	}
	overloadColumns = slices.Concat(offeredColumns, []column[outcome]{
		figure("served/s", 0, func(o outcome) float64 { return float64(o.steady.Served) / o.steady.seconds() }),
		figure("failed/s", 0, func(o outcome) float64 { return float64(o.steady.Failed) / o.steady.seconds() }),
		figure("of capacity", 2, func(o outcome) float64 { return float64(o.steady.Served) / o.steady.seconds() / o.capacity }),
		figure("p50 ms", 2, func(o outcome) float64 { return o.steady.P50 }),
		figure("p99 ms", 1, func(o outcome) float64 { return o.steady.P99 }),
		worst("growth of RSS", 2, func(o outcome) float64 { return float64(o.late.RSS) / float64(o.early.RSS) }),
	}, footprintColumns)
	stopColumns = slices.Concat(offeredColumns, []column[outcome]{
		worst("failed in all", 0, func(o outcome) float64 { return float64(o.all.Failed) }),
		worst("failed after 1 s", 0, func(o outcome) float64 { return float64(o.after.Failed) }),
		figure("served/s after", 0, func(o outcome) float64 { return float64(o.settled.Served) / o.settled.seconds() }),
		figure("p50 ms before", 2, func(o outcome) float64 { return o.before.P50 }),
		figure("p50 ms after", 2, func(o outcome) float64 { return o.settled.P50 }),
		figure("p99 ms before", 1, func(o outcome) float64 { return o.before.P99 }),
		figure("p99 ms after", 1, func(o outcome) float64 { return o.settled.P99 }),
		// Below 5 ms it is the machine that makes the difference.
		worst("p99 after/before", 1, func(o outcome) float64 { return unserved(o.settled.P99) / max(o.before.P99, 5) }),
	}, footprintColumns)
	hangColumns = slices.Concat(offeredColumns, []column[outcome]{
		worst("failed", 0, func(o outcome) float64 { return float64(o.all.Failed) }),
		worst("commands after", 0, func(o outcome) float64 { return float64(o.commands) }),
		versus("of by hand", 2, func(o, first outcome) float64 { return float64(o.commands) / float64(max(1, first.commands)) }),
		worst("quiet after ms", 0, func(o outcome) float64 { return o.quiet }),
		worst("goroutines then", 0, func(o outcome) float64 { return float64(o.late.Goroutines) }),
	}, footprintColumns)
)

// unserved makes a number of the latency of nobody.
func unserved(ms float64) float64 {
	if math.IsNaN(ms) {
		return 1e6
	}
	return ms
}

const bulkLegend = "Calls come at a rate whatever becomes of those before, each with a context and a key of its own: it takes the lock and releases it. " +
	"Contender and generator have a process of their own, go-redis its default number of connections. missed: calls that the generator " +
	"could not offer. inside: calls at a time at most. beyond: goroutines beside those of the calls. of RSS allowed: of the first line's, and " +
	"4 KB for each call inside and 200 bytes, 32 MB at most, for each that failed. Capacity: the most calls/s that are all served, with a p99 of 25 ms at most. "

// compare measures contenders in turns, for each setup of the client.
func (b *bulk) compare(everyone bool, measure func(t trial) (outcome, error), setting ...any) (all []row[outcome], err error) {
	for _, client := range clients {
		var chosen []trial
		var names []string
		for i, c := range contenders {
			own := c.name == peers.Rueidislock.Name // its client is not go-redis'
			if (everyone || i < 2) && !(own && client.timeouts) {
				chosen, names = append(chosen, trial{contender: c, timeouts: client.timeouts, ttl: lease, patience: time.Second}), append(names, c.name)
			}
		}
		rows, err := interleave(b.rounds, names, func(i int) (outcome, error) { return measure(chosen[i]) }, append(slices.Clone(setting), client.name)...)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}

// prompt is the p99 up to which a rate counts as served: with a longer one a queue grows.
const prompt = 25 // ms

// capacity is the highest rate that a contender serves promptly, found with an open loop.
func (b *bulk) capacity(ctx context.Context, t trial) (float64, error) {
	id := fmt.Sprint(t.timeouts, t.name)
	if c := b.capacities[id]; c > 0 {
		return c, nil
	}
	l, err := t.start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { l.close() }()
	step := b.duration / 2
	var closed float64
	if err := l.ask("Cycle", step/2, &closed); err != nil {
		return 0, err
	}
	best, rate, up := 0.0, closed/2, 1.25
	for tries := 0; up > 1.1; {
		from, to, err := l.offer(ctx, rate, step)
		if err != nil {
			return 0, err
		}
		w, err := l.windows([2]int64{from + (to-from)/3, to})
		if err != nil {
			return 0, err
		}
		if float64(w[0].Served) >= 0.97*rate*w[0].seconds() && w[0].Failed == 0 && w[0].P99 <= prompt {
			best, rate, tries = rate, rate*up, 0
			continue
		}
		// What else the machine did is no fault of the contender: it has more tries, and as many in a smaller step.
		if tries++; tries >= b.bulk.tries {
			if up = math.Sqrt(up); best > 0 {
				rate = best * up
			} else {
				rate, up = rate/2, 1.25
			}
			tries = 0
		}
		if rate < 100 {
			return 100, nil // a machine that stands still; the rows show how much of that it served
		}
		l.close() // what it has not come to grips with is not the next one's
		if l, err = t.start(ctx); err != nil {
			return 0, err
		}
	}
	b.capacities[id] = best
	return best, nil
}

// overload is a steady load, up to one that nobody can serve.
func (b *bulk) overload(ctx context.Context) (table, error) {
	var all []row[outcome]
	for _, load := range b.bulk.loads {
		rows, err := b.compare(b.bulk.everyone || load == 200, func(t trial) (o outcome, err error) {
			if o.capacity, err = b.capacity(ctx, t); err != nil {
				return o, err
			}
			l, err := t.start(ctx)
			if err != nil {
				return o, err
			}
			defer l.close()
			o.rate = o.capacity * float64(load) / 100
			lead := min(t.patience, b.duration/2) // by then as many are inside as there will be
			from, to, err := l.offer(ctx, o.rate, lead+b.duration)
			if err != nil {
				return o, err
			}
			begun := from + int64(lead)
			half := begun + (to-begun)/2
			w, err := l.windows([2]int64{from, to}, [2]int64{begun, to}, [2]int64{begun, half}, [2]int64{half, to})
			o.all, o.steady, o.early, o.late = w[0], w[1], w[2], w[3]
			return o, err
		}, load)
		if err != nil {
			return table{}, err
		}
		all = append(all, rows...)
	}
	title := fmt.Sprintf("Calls at a rate that is some %% of the contender's capacity, with contexts of 1 s; medians of %d rounds of %v, and the worst of missed and of the memory.", b.rounds, b.duration)
	return tabulate(title, []string{"load %", "client", ""}, overloadColumns, all, bulkLegend+
		"of capacity: served/s. growth of RSS: from the first half to the second."), nil
}

// stop has the server stand still under a load that it can serve.
func (b *bulk) stop(ctx context.Context) (table, error) {
	var all []row[outcome]
	for _, stop := range b.bulk.stops {
		for _, load := range b.bulk.stopLoads {
			rows, err := b.compare(b.bulk.everyone, func(t trial) (o outcome, err error) {
				if o.capacity, err = b.capacity(ctx, t); err != nil {
					return o, err
				}
				o.rate = o.capacity * float64(load) / 100
				l, err := t.start(ctx)
				if err != nil {
					return o, err
				}
				defer l.close()
				from, stopped, resumed, err := l.halt(ctx, o.rate, b.bulk.lead, stop, func() error { return nil })
				if err != nil {
					return o, err
				}
				if err := pause(ctx, b.bulk.tail); err != nil {
					return o, err
				}
				to, second := now(), int64(b.bulk.tail)*2/7 // 1 s of 3.5
				w, err := l.windows([2]int64{from, to}, [2]int64{from + (stopped-from)/4, stopped}, [2]int64{resumed + second, to}, [2]int64{resumed + 2*second, to})
				o.all, o.before, o.after, o.settled = w[0], w[1], w[2], w[3]
				return o, err
			}, stop.String(), load)
			if err != nil {
				return table{}, err
			}
			all = append(all, rows...)
		}
	}
	title := fmt.Sprintf("The server stops (SIGSTOP) and goes on (SIGCONT) under calls at some %% of the contender's capacity, with contexts of 1 s; medians "+
		"of %d rounds, and the worst of missed, failed and of the memory.", b.rounds)
	return tabulate(title, []string{"stop", "load %", "client", ""}, stopColumns, all, bulkLegend+
		"failed after 1 s: later than that after the server went on. after: from 2 s on."), nil
}

// halt offers calls for lead, stops the server, and has it go on. The calls go on.
func (l *loader) halt(ctx context.Context, rate float64, lead, stop time.Duration, atEnd func() error) (from, stopped, resumed int64, err error) {
	from = now()
	if err = l.ask("Offer", rate, &struct{}{}); err != nil {
		return
	}
	if err = pause(ctx, lead); err != nil {
		return
	}
	if err = l.watcher.resetStats(ctx); err != nil {
		return
	}
	stopped = now()
	if err = l.server.Pause(); err != nil {
		return
	}
	if err = pause(ctx, stop); err != nil {
		return
	}
	if err = atEnd(); err != nil {
		return
	}
	resumed = now()
	err = l.server.Resume()
	return
}

// hang is a long stop under a load that is far from what could be served. It ends together with the calls.
func (b *bulk) hang(ctx context.Context) (table, error) {
	const rate, patience = 1000, 300 * time.Millisecond
	var all []row[outcome]
	for _, hang := range b.bulk.hangs {
		for _, ttl := range b.bulk.ttls {
			rows, err := b.compare(b.bulk.everyone, func(t trial) (o outcome, err error) {
				o.rate = rate
				t.ttl, t.patience = ttl, patience
				l, err := t.start(ctx)
				if err != nil {
					return o, err
				}
				defer l.close()
				from, _, resumed, err := l.halt(ctx, rate, b.bulk.lead, hang, func() error { return l.ask("Cease", struct{}{}, &struct{}{}) })
				if err != nil {
					return o, err
				}
				quiet, err := l.quieten(ctx, t.sends, resumed, &o.commands)
				if err != nil {
					return o, err
				}
				o.quiet = float64(quiet-resumed) / 1e6
				to := now()
				w, err := l.windows([2]int64{from, to}, [2]int64{to - 2*int64(loopSlot), to})
				o.all, o.late = w[0], w[1]
				return o, err
			}, hang.String(), ttl.String())
			if err != nil {
				return table{}, err
			}
			all = append(all, rows...)
		}
	}
	title := fmt.Sprintf("The server hangs under %d calls/s with contexts of %v, which end when it goes on; the worst of %d rounds.", rate, patience, b.rounds)
	return tabulate(title, []string{"hang", "TTL", "client", ""}, hangColumns, all, bulkLegend+
		"commands after: the lock's, that the server executed from the end of the hang until it had none for 500 ms."), nil
}

// quieten waits until the server executes no more commands of a lock, and returns when that began and how many there were.
func (l *loader) quieten(ctx context.Context, sends []string, resumed int64, commands *int64) (int64, error) {
	last := resumed
	for *commands = 0; now() < last+int64(500*time.Millisecond); {
		s, err := l.watcher.stats(ctx)
		if err != nil {
			return 0, err
		}
		if sent, _ := s.split(sends); sent.calls != *commands {
			*commands, last = sent.calls, now()
		}
		if now() > resumed+int64(time.Minute) {
			return last, nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return last, nil
}
