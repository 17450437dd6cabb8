package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// tenancy is a way to let tenants have parts of a lock.
type tenancy struct {
	host
	named bool // each call says whose it is
}

// tenancies are without names first, which the others are compared with. The peers have no names: what they show is how long one
// tenant waits behind another there.
var tenancies = []tenancy{
	{host{us + " (no names)", sentByHoldfast, openLimit()}, false},
	{hosts[0], true},
	{hosts[1], false},
	{hosts[2], false},
}

// loopers are those whose throughput is measured. The last one tells what names cost apart from hand-overs: each call asks Redis.
var loopers = []tenancy{
	tenancies[0], tenancies[1],
	{host{us + " (no names, no local line)", sentByHoldfast, openLimit(withoutLocalLine)}, false},
}

func namesOf(all []tenancy) (names []string) {
	for _, of := range all {
		names = append(names, of.name)
	}
	return names
}

// permits is how many tenants hold the lock together.
const permits = 4

// tenant is who calls.
type tenant struct {
	waiters []waiter // of its calls, in turns
	work    time.Duration

	mu sync.Mutex // guards the diary
	diary
}

func (of tenancy) tenant(waiters []waiter, work time.Duration, name string, weight int) *tenant {
	n := &tenant{work: work}
	for _, w := range waiters {
		if of.named {
			o := w.(ours)
			o.opts = append(slices.Clone(o.opts), holdfast.WithShare(name), holdfast.WithShareWeight(weight))
			w = o
		}
		n.waiters = append(n.waiters, w)
	}
	return n
}

// call is the ith.
func (n *tenant) call(ctx context.Context, i int) {
	asked := now()
	lock, err := n.waiters[i%len(n.waiters)].acquire(ctx, hot)
	h := hold{Asked: asked, Acquired: now()}
	if lock != nil {
		time.Sleep(n.work)
		h.Released = now()
		err = lock.Release(context.WithoutCancel(ctx))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if lock != nil {
		n.Holds = append(n.Holds, h)
	}
	if err != nil && ctx.Err() == nil {
		n.failed(err)
	}
}

// waits are those of the calls that were served from from to to, in ms, in order.
func (n *tenant) waits(from, to int64) (all []float64) {
	for _, h := range n.Holds {
		if h.Acquired >= from && h.Acquired < to {
			all = append(all, float64(h.Acquired-h.Asked)/1e6)
		}
	}
	slices.Sort(all)
	return all
}

// inShares measures how a lock that several hold is shared among tenants.
func (p plan) inShares(ctx context.Context, each func(table) error) error {
	for _, of := range []part{{name: "burst", measure: plan.bursts}, {name: "loops", measure: plan.loops}, {name: "line", measure: plan.longLines}} {
		err := of.run(p, ctx, func(t table) error {
			t.Part = "shares: " + t.Part
			return each(t)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
	}
	return nil
}

// beside is one measurement of a burst of one tenant, and of another beside it.
type beside struct {
	turnout
	waits []float64 // ms, of the other
	took  float64   // by the burst, of the ideal
}

var besideColumns = []column[beside]{
	typical("p50 ms", 1, func(b beside) float64 { return quantile(b.waits, 0.5) }),
	typical("p90 ms", 1, func(b beside) float64 { return quantile(b.waits, 0.9) }),
	most("longest ms", 1, func(b beside) float64 { return quantile(b.waits, 1) }),
	typical("burst/ideal", 3, func(b beside) float64 { return b.took }),
	failed[beside](),
	total("beyond", func(b beside) int { return b.beyond }),
}

// bursts has one tenant call many times at once.
func (p plan) bursts(ctx context.Context, s *server) (table, error) {
	const work = 20 * time.Millisecond
	t := newTarget(s.addr, 4)
	defer t.close()
	calls := permits * int(p.duration/work)
	var rows []row[beside]
	for _, often := range []struct {
		label string
		every time.Duration
		once  bool
	}{{"one in the midst", p.duration / 2, true}, {"every 40 ms", 40 * time.Millisecond, false}} {
		for lockers := range 2 {
			group, err := interleave(p.rounds, namesOf(tenancies), func(i int) (beside, error) {
				return p.burst(ctx, t, tenancies[i], lockers+1, calls, work, often.every, often.once)
			}, often.label, lockers+1)
			if err != nil {
				return table{}, err
			}
			rows = append(rows, group...)
		}
	}
	title := fmt.Sprintf("A tenant calls %d times at once for a lock that %d hold together, each call for %v. Another one calls meanwhile, of the "+
		"same Locker or of a second one. Medians of %d rounds, and the longest of all.", calls, permits, work, p.rounds)
	return tabulate(title, []string{"others", "Lockers", ""}, besideColumns, rows, "p50, p90 and longest: how long the other tenant's calls "+
		"wait. burst/ideal: until all calls of the burst were served, of what they and the other's calls until then take without a pause. beyond: how often more "+
		"were inside than the limit allows. holdfast names the tenants, the others cannot."), nil
}

func (p plan) burst(ctx context.Context, t *target, of tenancy, lockers, calls int, work, every time.Duration, once bool) (b beside, err error) {
	l, err := p.openTenancy(ctx, t, of, lockers)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	many := of.tenant(l.waiters[:1], work, "many", 1)
	other := of.tenant(l.waiters[lockers-1:], work, "other", 1)

	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	meanwhile, over := context.WithCancel(ctx)
	defer over()
	var burst, others sync.WaitGroup
	from := now()
	for i := range calls {
		burst.Go(func() { many.call(ctx, i) })
	}
	others.Go(func() {
		for i := 0; pause(meanwhile, every) == nil && (i == 0 || !once); i++ {
			others.Go(func() { other.call(ctx, i) })
		}
	})
	burst.Wait()
	over()
	to := now()
	others.Wait()
	if err := ctx.Err(); err != nil {
		return b, err
	}
	b.turnout = party{limit: permits}.judge([]diary{many.diary, other.diary}, from, to)
	b.waits = other.waits(from, math.MaxInt64)
	ideal := int64(work) * int64(calls)
	for _, h := range other.Holds {
		ideal += max(0, min(int64(work), to-h.Acquired))
	}
	b.took = float64(to-from) * permits / float64(ideal)
	return b, nil
}

func (p plan) openTenancy(ctx context.Context, t *target, of tenancy, lockers int) (*lockers, error) {
	if err := t.rdb.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	l, err := openLockers(ctx, rival{name: of.name, open: of.open(permits)}, t.addr, lockers, p.pool)
	runtime.GC()
	return l, err
}

// loop is three tenants that call again and again.
type loop struct {
	label   string
	callers [3]int
	weights [3]float64
	busy    int // so many of them have calls enough for their parts
}

var loops = []loop{
	{"1000, 100 and 1", [3]int{1000, 100, 1}, [3]float64{1, 1, 1}, 2},
	{"30 each, weights 1, 2 and 4", [3]int{30, 30, 30}, [3]float64{1, 2, 4}, 3},
}

// portions is one measurement of a loop.
type portions struct {
	turnout
	got   [3]float64 // grants per second
	off   float64    // %
	waits []float64  // ms, of the third
}

var portionColumns = []column[portions]{
	typical("grants/s", 0, func(s portions) float64 { return s.acquires }),
	ratio("ratio", func(s portions) float64 { return s.acquires }),
	typical("first", 0, func(s portions) float64 { return s.got[0] }),
	typical("second", 0, func(s portions) float64 { return s.got[1] }),
	typical("third", 0, func(s portions) float64 { return s.got[2] }),
	typical("off %", 1, func(s portions) float64 { return s.off }),
	typical("third's p50 ms", 1, func(s portions) float64 { return quantile(s.waits, 0.5) }),
	most("third's longest ms", 1, func(s portions) float64 { return quantile(s.waits, 1) }),
	typical("commands", 2, func(s portions) float64 { return s.commands }),
	typical("script µs", 1, func(s portions) float64 { return s.script }),
	failed[portions](),
	total("beyond", func(s portions) int { return s.beyond }),
}

// loops has tenants call as often as they are served.
func (p plan) loops(ctx context.Context, s *server) (table, error) {
	p.duration *= 3 // a part is known as exactly as it has grants
	const work = 5 * time.Millisecond
	t := newTarget(s.addr, 4)
	defer t.close()
	var rows []row[portions]
	for _, of := range loops {
		group, err := interleave(p.rounds, namesOf(loopers), func(i int) (portions, error) {
			return p.loop(ctx, t, loopers[i], of, work)
		}, of.label)
		if err != nil {
			return table{}, err
		}
		rows = append(rows, group...)
	}
	title := fmt.Sprintf("Callers of three tenants, of two Lockers, take a lock that %d hold together over and over, each time for %v. Medians of %d "+
		"rounds of %v, and the longest of all.", permits, work, p.rounds, p.duration)
	return tabulate(title, []string{"callers", ""}, portionColumns, rows, "ratio: of grants/s to the first line's. first, second and third: the tenants' "+
		"grants/s. off %: how far from its part the grants are of the tenant that is farthest, among those with calls enough for a part. A single caller has not, "+
		"and waits as long as it says there. commands: sent by the clients, for each grant. script µs: the server's time for an EVALSHA. –: no grant in a round."), nil
}

func (p plan) loop(ctx context.Context, t *target, of tenancy, in loop, work time.Duration) (got portions, err error) {
	l, err := p.openTenancy(ctx, t, of, 2)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	inside, stop := context.WithTimeout(ctx, endless)
	defer stop()
	var callers sync.WaitGroup
	var tenants []*tenant
	for i, n := range in.callers {
		who := of.tenant(l.waiters, work, fmt.Sprint("tenant", i), int(in.weights[i]))
		tenants = append(tenants, who)
		for k := range n {
			callers.Go(func() {
				for inside.Err() == nil {
					who.call(inside, k)
				}
			})
		}
	}
	err = pause(ctx, p.duration/6) // for the first rush
	var sent stats
	var from, to int64
	if err == nil {
		from, to, err = t.watch(ctx, p.duration, &sent)
	}
	stop()
	callers.Wait()
	if err != nil {
		return got, err
	}
	var diaries []diary
	grants, weights := 0.0, 0.0
	for i, who := range tenants {
		diaries = append(diaries, who.diary)
		got.waits = who.waits(from, to)
		got.got[i] = float64(len(got.waits)) / float64(to-from) * 1e9
		if i < in.busy {
			grants, weights = grants+got.got[i], weights+in.weights[i]
		}
	}
	for i := range in.busy {
		got.off = max(got.off, 100*math.Abs(got.got[i]*weights/in.weights[i]/grants-1))
	}
	got.turnout = party{limit: permits}.judge(diaries, from, to)
	all, _ := sent.split(of.sends)
	got.commands = float64(all.calls) / got.seconds / got.acquires
	got.script = float64(sent["evalsha"].usec) / float64(sent["evalsha"].calls)
	return got, nil
}
