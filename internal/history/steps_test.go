package history

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// clocks tells how many of them the servers of a world go by.
type clocks int

const (
	right  clocks = iota // the machine's
	apart                // a minority of several has each its own, a server that is alone too
	shared               // all have the same
)

// swing is how far a clock is set back after it was set forward by more, or forward after it was set back by more: a fence
// lives longer.
const swing = 40 * time.Second

// wound is a clock of a world and where it has been.
type wound struct {
	*servertest.Clock
	servers   []int
	high, low time.Duration
}

// wind makes the clocks of a world, and starts its servers.
func (w *world) wind(args ...string) {
	kind := right
	for _, f := range w.faults {
		kind = max(kind, f.clocks)
	}
	n := map[clocks]int{right: 0, apart: max(1, (w.nodes-1)/2), shared: 1}[kind]
	for range n {
		w.clocks = append(w.clocks, &wound{Clock: servertest.NewClock(w.t)})
	}
	for i := range w.nodes {
		switch {
		case kind == shared || i < n:
			c := w.clocks[i%n]
			c.servers = append(c.servers, i)
			w.servers = append(w.servers, c.Redis(args...))
		default:
			w.servers = append(w.servers, servertest.Redis(w.t, args...))
		}
	}
	now := time.Now()
	w.record.Unix = Stamp(now.UnixNano()) - After(now)
	w.record.Lease = w.ttl()
	w.record.Margin = max(25*time.Millisecond, w.ttl()/20) // as Lock.Deadline has it
	if n > 0 {
		w.orders.Clock = w.clocks[0].File()
		if kind == apart && w.nodes > 1 {
			w.orders.Clock = "" // most go by the true one
		}
	}
	w.far = 1 - 2*rand.New(rand.NewPCG(w.seed, 4)).IntN(2)
}

// step sets a clock forward or back, and waits until its servers tell the new time.
func (w *world) step(rnd *rand.Rand, sign int) {
	w.stepping.Lock()
	defer w.stepping.Unlock()
	i := rnd.IntN(len(w.clocks))
	c := w.clocks[i]
	by := time.Duration(float64(time.Millisecond) * math.Pow(1e4, rnd.Float64()))
	if far := rnd.IntN(4) == 0; far && (sign < 0 || w.forgetful()) {
		by = time.Duration(float64(10*time.Second) * math.Pow(360, rnd.Float64()))
		if w.forgetful() {
			sign = w.far
		}
	}
	by *= time.Duration(sign)
	if to := c.Ahead() + by; w.forgetful() && (w.far > 0 && to < c.high-swing || w.far < 0 && to > c.low+swing) {
		by = -by
	}
	s := Step{Clock: i, From: Before(time.Now()), By: by}
	c.Step(by)
	c.high, c.low = max(c.high, c.Ahead()), min(c.low, c.Ahead())
	for _, server := range c.servers {
		w.tells(server, c.Ahead())
	}
	s.To = After(time.Now())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.Steps = append(w.record.Steps, s)
}

// tells sees to it that a server's time is ahead by so much, unless it is down. What it does from then on is by that time.
func (w *world) tells(server int, ahead time.Duration) {
	const precision = time.Second // the machine's own clock may be set as well
	from := time.Now()
	at, err := w.admins[server].Time(context.Background()).Result()
	if off := at.Sub(from.Add(ahead)); err == nil && (off < -precision || off > time.Since(from)+precision) {
		w.t.Errorf("SEED=%d: the clock of server %d is %v off after a step to %v", w.seed, server, off, ahead)
	}
}
