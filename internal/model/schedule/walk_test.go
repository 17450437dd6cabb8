package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
)

// result of a walk.
type result struct {
	Breach Breach
	Calls  int
	Served int // from the line

	// How near it came to the bounds of the package comment, as a part of them.
	Passed, Ahead, Lag float64
}

// caller is a client with one call.
type caller struct {
	Waiter
	holds       bool
	silent      bool  // dead: it neither looks nor releases
	place       int64 // in the order in which callers joined, whatever the clock says
	until, look int   // ticks
	seen        int   // the last call after which it was in line

	told   bool  // for as long as which the next two count
	ahead  int64 // waiters of its share up to itself, at first
	passed int64 // the steps of those that were let in since
}

// world is a lock and its callers.
type world struct {
	Lock
	result
	only   Breach // no other counts, unless it is Kept
	log    func(format string, args ...any)
	of     map[string]*caller          // by owner
	ahead  map[*Share]map[string]int64 // the steps that another share got more than one since that one waits, or later
	joined int64
	most   int // shares that waited at once since nobody did
}

const tick = 1000 // µs

func newWorld(without Rule, only Breach, log func(string, ...any)) *world {
	w := &world{only: only, log: log, of: map[string]*caller{}, ahead: map[*Share]map[string]int64{}}
	w.Without, w.Now, w.Lease, w.Deaf, w.watch = without, 1e6, 12*tick, map[string]bool{}, w.grants
	return w
}

func (w *world) say(format string, args ...any) {
	if w.log != nil {
		w.log(format, args...)
	}
}

func (w *world) breaks(b Breach) {
	if w.Breach == Kept && (w.only == Kept || w.only == b) {
		w.Breach = b
	}
}

func (w *world) acquire(c *caller) {
	if _, o := w.Find(c.Owner); o == nil {
		w.joined++
		c.place, c.told = w.joined, false
	}
	c.Expiry, w.of[c.Owner] = w.Now+13*tick, c
	if w.log != nil {
		w.log("%s acquires: share %q, weight %d, limit %d", c.Owner, c.Share, c.Weight, c.Limit)
	}
	w.after(c.Owner, w.Acquire(c.Waiter))
}

func (w *world) forget(c *caller) {
	w.say("%s leaves", c.Owner)
	c.holds = false
	w.after("", w.Forget(c.Owner))
}

// grants is told of one that is about to be let in.
func (w *world) grants(o *Waiter) {
	step, share, next := Step(o.Weight), w.share(o.Share), w.of[o.Owner]
	w.Served++
	if next.holds {
		w.breaks(Twice)
	}
	if w.Now >= o.Expiry {
		w.breaks(Silent)
	}
	for a, n := range w.ahead[share] {
		w.ahead[share][a] = max(0, n-step)
	}
	for _, s := range w.Shares {
		told := false
		for _, q := range s.Waiters {
			c := w.of[q.Owner]
			if !c.told || q == o {
				continue
			}
			told = true
			if s == share && c.place < next.place {
				w.breaks(Passed)
			}
			c.passed += step
			part := float64(c.passed) / float64(c.ahead*int64(3*w.most+2)*(Unit+1))
			if w.Passed = max(w.Passed, part); part >= 1 {
				w.breaks(Starved)
			}
		}
		switch {
		case s == share:
		case !told:
			delete(w.ahead, s)
		default:
			if w.ahead[s] == nil {
				w.ahead[s] = map[string]int64{}
			}
			w.ahead[s][o.Share] += step
			part := float64(w.ahead[s][o.Share]) / (Unit*(harmonic(w.most+1)+1.5) + 1)
			if w.Ahead = max(w.Ahead, part); part > 1 {
				w.breaks(Unfair)
			}
		}
	}
}

func harmonic(n int) (h float64) {
	for i := 1; i <= n; i++ {
		h += 1 / float64(i)
	}
	return h
}

// after looks at what a call of self has left.
func (w *world) after(self string, granted []*Waiter) {
	w.Calls++
	for _, o := range granted {
		w.say("    %s is let in", o.Owner)
		w.of[o.Owner].holds = true
	}
	if w.most = max(w.most, len(w.Shares)); len(w.Shares) == 0 {
		w.most = 0
	}
	least := len(w.Inside)
	for _, h := range w.Inside {
		least = min(least, h.Limit)
	}
	if least < len(w.Inside) {
		w.breaks(Crowded)
	}
	if next := w.Next(w.Now, w.heard(self)); next != nil && w.fits(next.Limit) {
		w.breaks(Idle)
	}
	longest := Unit*(harmonic(w.most+1)-0.5) + 1
	for _, s := range w.Shares {
		if w.Marked {
			lag := w.V - float64(s.Tag)
			if w.Lag = max(w.Lag, lag/longest); lag > longest || lag < -Unit {
				w.breaks(Lagging)
			}
		}
		if _, ok := w.Finish[s.Name]; ok || len(s.Waiters) == 0 || !w.Marked && (s.Name != "" || s.Tag != 0) {
			w.breaks(Untidy)
		}
		for i, o := range s.Waiters {
			c := w.of[o.Owner]
			if c.seen == w.Calls || c.holds || i > 0 && o.At <= s.Waiters[i-1].At {
				w.breaks(Untidy)
			}
			c.seen = w.Calls
			switch {
			case w.Deaf[o.Owner] || w.Now >= o.Expiry:
				c.told = false
			case !c.told:
				c.told, c.passed, c.ahead = true, 0, int64(i+1)
			}
		}
	}
	for _, tag := range w.Finish {
		if float64(tag) <= w.V {
			w.breaks(Untidy)
		}
	}
	if !w.Marked && (w.V != 0 || len(w.Finish) > 0) || w.Marked && len(w.Shares) == 0 {
		w.breaks(Untidy)
	}
}

// walk makes random calls of a lock that lacks some rules, and ends at the first breach, or the first one that is only if that
// is not Kept. The schedule depends on seed alone: how many shares and how many that are new, weights, limits, load, bursts,
// patience, deaths, callers that cannot be told, clocks that are set back. Steps are told to log, if there is one.
func walk(seed uint64, without Rule, only Breach, log func(format string, args ...any)) result {
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	in := func(perMille int) bool { return r.IntN(1000) < perMille }

	w := newWorld(without, only, log)

	shares, fresh, loop := 1+r.IntN(8), pick(0, 0, 100, 500, 900), pick(0, 0, 500, 1000)
	heaviest, places, other, hold := pick(1, 1, 4, 100), 1+r.IntN(4), pick(0, 0, 100, 300), 1+r.IntN(5)
	load, bursts, quits, dies := pick(50, 100, 102, 150, 300), pick(0, 0, 50), pick(0, 0, 200, 800), pick(0, 0, 20)
	deafens, back, convoy := pick(0, 0, 0, 20, 100), pick(0, 0, 0, 20), pick(0, 0, 0, 0, 6)
	perTick := 10 * load * places / hold // per mille
	if convoy > 0 {
		shares, perTick, fresh, hold, quits = 1, 200, 0, 1, 0
	}

	var callers []*caller
	n := 0
	begin := func(now int, share string) {
		if len(callers) >= 30 {
			return
		}
		n++
		c := &caller{Waiter: Waiter{Owner: "c" + strconv.Itoa(n), Share: share, Weight: 1, Limit: places}, until: 1 << 30, look: now + 6}
		if share != "" {
			c.Weight = int64(1 + r.IntN(heaviest))
		}
		if in(other) {
			c.Limit = pick(1, 1, 2, 5)
		}
		if in(quits) {
			c.until = now + 1 + r.IntN(8)
		}
		callers = append(callers, c)
		w.acquire(c)
	}
	anyone := func(now int) {
		share := ""
		if s := r.IntN(shares); in(fresh) {
			share = "user" + strconv.Itoa(n)
		} else if s > 0 {
			share = string(rune('A' + s - 1))
		}
		begin(now, share)
	}
	held := map[*caller]bool{}
	for now, end := 0, 30+r.IntN(60); now < end && w.Breach == Kept; now++ {
		w.Now += tick
		if in(back) {
			w.Now -= int64(r.IntN(20)) * tick
			w.say("the clock is set back")
		}
		for _, c := range slices.Clone(callers) {
			switch {
			case w.Breach != Kept:
				return w.result
			case c.holds && !held[c]:
				held[c], c.until = true, now+1+r.IntN(2*hold)
				fallthrough
			case c.silent:
				if _, o := w.Find(c.Owner); o == nil && !slices.ContainsFunc(w.Inside, func(h Holder) bool { return h.Owner == c.Owner }) {
					c.until, c.silent = 0, false
				}
			case in(dies):
				c.silent = true
				w.say("%s dies", c.Owner)
			case now >= c.until:
				again := c.holds && in(loop)
				callers = slices.DeleteFunc(callers, func(o *caller) bool { return o == c })
				delete(held, c)
				delete(w.Deaf, c.Owner)
				w.forget(c)
				delete(w.of, c.Owner)
				if again {
					begin(now, c.Share)
				}
			case !c.holds && now >= c.look:
				c.look = now + 6
				w.acquire(c)
			case !c.holds && in(deafens):
				w.Deaf[c.Owner] = !w.Deaf[c.Owner]
				w.say("%s can be told: %v", c.Owner, !w.Deaf[c.Owner])
				c.told = false
			}
		}
		for rate := perTick; in(rate); rate -= 1000 {
			anyone(now)
		}
		for i := 0; i < convoy && (i > 0 || len(w.Shares) == 1); i++ { // new shares come together, as if they knew when
			begin(now, "user"+strconv.Itoa(n))
		}
		if in(bursts) {
			for range 10 {
				anyone(now)
			}
		}
	}
	return w.result
}

// explain tells the steps of a walk.
func explain(seed uint64, without Rule, only Breach) (text string) {
	walk(seed, without, only, func(format string, args ...any) { text += fmt.Sprintf(format, args...) + "\n" })
	return text
}
