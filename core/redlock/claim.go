package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// claimRounds is how many node timeouts a claim goes on for. Its last attempt and the withdrawal of that take one more
// each.
const claimRounds = rounds - 2

// withdrawing is for how long a failed attempt tries to take its mark back.
const withdrawing = 10 * time.Second

// Claim returns a function that tries until most masters have the mark of one of its attempts, or most have that of
// another claimant.
func (q *masters) Claim(names protocol.Names, tick int64, ttl time.Duration, w protocol.Window) func(context.Context) *redisconn.Call {
	mine := map[string]bool{} // the claimants of this call; its attempts do not overlap
	return func(ctx context.Context) *redisconn.Call {
		c := redisconn.NewSum(q.env)
		q.env.Go(func() {
			end := c.At.Mono + claimRounds*q.patience(ttl)
			for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
				err := q.dependent()
				if err != nil {
					c.Answer(nil, err)
					return
				}
				p := newPoll(q, names, ttl, mine)
				decided := p.run(ctx, tick, w)
				err = q.dependent() // which these answers may have shown
				if p.raised >= q.need && err == nil {
					c.Answer(protocol.Claimed{Code: protocol.ClaimGranted}, nil)
					return
				}
				p.withdraw()
				now := q.env.Now().Mono
				if err == nil && (decided || ctx.Err() != nil || now+pause >= end) {
					c.Answer(p.verdict())
					return
				}
				if err == nil {
					q.env.Await(ctx, pause/2+rand.N(pause+now-c.At.Mono))
				}
			}
		})
		return c
	}
}

// poll is one attempt to raise a mark on most masters.
type poll struct {
	q        *masters
	names    protocol.Names
	ttl      time.Duration
	claimant string
	gone     string
	mine     map[string]bool

	raised int
	by     map[string]int             // refusals, by the tick and the claimant of the mark
	out    map[protocol.ClaimCode]int // refusals for being outside of the window
	now    int64                      // the clock of a master for which the tick is outside of the window
	errs   []error
	young  QuarantineError
	open   []bool // the masters that have not answered
	unsure []bool // the masters that may have raised the mark
}

func newPoll(q *masters, names protocol.Names, ttl time.Duration, mine map[string]bool) *poll {
	p := &poll{
		q: q, names: names, ttl: ttl, claimant: protocol.RandomID(), mine: mine, by: map[string]int{}, out: map[protocol.ClaimCode]int{},
		open: make([]bool, len(q.all)), unsure: make([]bool, len(q.all)),
	}
	p.gone = names.Tombstone(p.claimant)
	mine[p.claimant] = true
	return p
}

// run waits for the answers that matter, and reports whether another attempt could only have the same result.
func (p *poll) run(ctx context.Context, tick int64, w protocol.Window) (decided bool) {
	plan := protocol.TickPlan(tick, w, p.q.quarantine > 0)
	need, rest := p.q.need, len(p.q.all)-p.q.need
	p.q.ask(ctx, p.ttl, func(i int, c *redisconn.Call) {
		p.open[i] = true
		c.Set(protocol.Tick(c.Buf[:0], &p.names, p.gone, p.claimant, plan))
	}, func(i int, c *redisconn.Call) bool {
		p.count(i, c)
		decided = p.raised >= need || p.taken() ||
			p.out[protocol.ClaimEarly] > rest || p.out[protocol.ClaimLate] > rest || len(p.young.Nodes) > rest
		return decided
	}, func(i int) { p.open[i] = false })
	return decided
}

func (p *poll) count(i int, c *redisconn.Call) {
	m := p.q.all[i]
	p.open[i] = false
	fail := func(err error) { p.errs = append(p.errs, &memberError{m.name, err}) }
	if c.Err != nil {
		p.unsure[i] = !redisconn.Harmless(c.Err)
		fail(c.Err)
		return
	}
	v, ok := protocol.ReadTicked(c.Val)
	switch {
	case !ok:
		p.unsure[i] = true
		fail(protocol.ErrReply)
	case v.Code == protocol.ClaimGranted:
		p.raised++
		p.unsure[i] = true
	case v.Code == protocol.ClaimTaken:
		// The mark of an earlier attempt of this call, or of an attempt that has withdrawn, is no claim.
		if p.mine[v.Claimant] || v.Claimant == "-" {
			fail(errOwnMark)
			return
		}
		p.by[fmt.Sprint(v.Tick, " ", v.Claimant)]++
	case v.Code == protocol.ClaimYoung:
		fail(errYoung)
		p.young.Nodes = append(p.young.Nodes, m.name)
		if v.Young > 0 {
			if until := time.Now().Add(timing.Millis(v.Young)); until.After(p.young.Until) {
				p.young.Until = until
			}
		}
	default:
		p.out[v.Code]++
		p.now = v.Now
	}
}

var errOwnMark = errors.New("a failed attempt has left its mark there")

// taken reports whether most masters have the mark of one other claimant. If their claimants differ, perhaps none of
// those gets the tick.
func (p *poll) taken() bool {
	for _, n := range p.by {
		if n >= p.q.need {
			return true
		}
	}
	return false
}

// withdraw takes the mark back on each master that has raised it or may have. It waits a moment for that, or the next
// attempt would find this one in its way.
func (p *poll) withdraw() {
	var known sync.WaitGroup
	for i, m := range p.q.all {
		if !p.open[i] && !p.unsure[i] {
			continue
		}
		done := func() {}
		if !p.open[i] {
			known.Add(1)
			done = known.Done
		}
		m.plead(p.names.Lock, withdrawing, func(c *redisconn.Call) {
			c.Set(protocol.Withdraw(c.Buf[:0], &p.names, p.gone, p.claimant))
		}, done)
	}
	through := make(chan struct{})
	p.q.env.Go(func() { known.Wait(); close(through) })
	p.q.env.Await(context.Background(), p.q.patience(p.ttl), through)
}

// verdict returns the result of an attempt that failed.
func (p *poll) verdict() (any, error) {
	rest := len(p.q.all) - p.q.need
	for _, code := range []protocol.ClaimCode{protocol.ClaimEarly, protocol.ClaimLate} {
		if p.out[code] > rest {
			return protocol.Claimed{Code: code, Now: p.now}, nil
		}
	}
	if p.taken() {
		return protocol.Claimed{Code: protocol.ClaimTaken}, nil
	}
	out := &failure{all: p.errs, need: rest + 1, young: p.young}
	if len(out.all) == 0 {
		out.all = []error{errors.New("the masters do not agree on who claimed it")}
		answered := p.raised
		for _, n := range p.by {
			answered += n
		}
		if answered < p.q.need {
			out.all = []error{redisconn.ErrSilence}
		}
	}
	return nil, out
}
