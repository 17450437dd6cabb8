package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// claimRounds is how many node timeouts a claim on several masters may take: those who claim at once get in each other's way.
const claimRounds = 3

// claim tries until most masters have the mark for one attempt, or most of them have it for another.
func (q *quorum) claim(cfg *config, names protocol.Names, tick int64) func(context.Context) *redisconn.Call {
	mine := map[string]bool{} // whoever sends it again waits for the answer first
	return func(ctx context.Context) *redisconn.Call {
		c := &redisconn.Call{At: q.locker.clock.Now(), Done: make(chan struct{})}
		q.locker.gate.Join()
		go func() {
			defer q.locker.gate.Leave()
			defer close(c.Done)
			end := c.At.Mono + claimRounds*q.patience(cfg.ttl)
			for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
				if c.Err = q.dependent(); c.Err != nil {
					return
				}
				p := newPoll(q, cfg, names, tick, mine)
				decided := p.run(ctx)
				c.Err = q.dependent() // by these answers
				if p.raised >= q.need && c.Err == nil {
					c.Val = int64(1)
					return
				}
				p.withdraw()
				if c.Err != nil {
					return
				}
				now := q.locker.clock.Now().Mono
				if decided || ctx.Err() != nil || now+pause >= end {
					c.Val, c.Err = p.verdict()
					return
				}
				timer := q.locker.timers.Get(pause/2 + mathrand.N(pause+now-c.At.Mono))
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
				q.locker.timers.Rest(timer)
			}
		}()
		return c
	}
}

// poll is one attempt to raise a mark on most of several masters.
type poll struct {
	q        *quorum
	cfg      *config
	names    protocol.Names
	claimant string
	gone     string

	calls   []*redisconn.Call
	answers chan answer
	raised  int
	mine    map[string]bool            // the claimants of this call
	by      map[string]int             // refusals, by who has the mark
	out     map[protocol.ClaimCode]int // and by the bounds of the window
	now     int64                      // of a master that the tick is out of the window for
	errs    []error
	young   QuarantineError
	unsure  []bool // whether a master may have raised it
}

func newPoll(q *quorum, cfg *config, names protocol.Names, tick int64, mine map[string]bool) *poll {
	var id [16]byte
	_, _ = rand.Read(id[:])
	p := &poll{
		q: q, cfg: cfg, names: names, claimant: fmt.Sprintf("%x", id), mine: mine, by: map[string]int{}, out: map[protocol.ClaimCode]int{},
		calls: make([]*redisconn.Call, len(q.nodes)), answers: make(chan answer, len(q.nodes)), unsure: make([]bool, len(q.nodes)),
	}
	p.gone = names.Tombstone(p.claimant)
	mine[p.claimant] = true
	plan := protocol.TickPlan(tick, cfg.window(), q.quarantine > 0)
	for i, m := range q.nodes {
		c := new(redisconn.Call)
		p.calls[i] = c
		c.Then = func(any, error) {
			q.seen(m, c)
			p.answers <- answer{i, c}
		}
		m.Send(q.locker.gate.Over, c.Set(protocol.Tick(c.Room[:0], &names, p.gone, p.claimant, plan)))
	}
	return p
}

// run waits for the answers that matter, and reports whether another attempt could only tell the same.
func (p *poll) run(ctx context.Context) (decided bool) {
	timer := p.q.locker.timers.Get(p.q.patience(p.cfg.ttl))
	defer p.q.locker.timers.Rest(timer)
	need, rest := p.q.need, len(p.q.nodes)
	for left := rest; left > 0; left-- {
		select {
		case r := <-p.answers:
			p.count(r)
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
		if p.raised >= need {
			return true
		}
		if p.taken() {
			return true
		}
		if p.out[protocol.ClaimEarly] > rest-need || p.out[protocol.ClaimLate] > rest-need || len(p.young.Nodes) > rest-need {
			return true
		}
	}
	return false
}

func (p *poll) count(r answer) {
	m := p.q.nodes[r.i]
	p.calls[r.i] = nil
	fail := func(err error) { p.errs = append(p.errs, &memberError{m.name, err}) }
	if r.call.Err != nil {
		p.unsure[r.i] = !redisconn.Harmless(r.call.Err)
		fail(r.call.Err)
		return
	}
	v, ok := protocol.ReadTicked(r.call.Val)
	switch {
	case !ok:
		p.unsure[r.i] = true
		fail(errReply)
	case v.Code == protocol.ClaimGranted:
		p.raised++
		p.unsure[r.i] = true
	case v.Code == protocol.ClaimTaken:
		if p.mine[v.Claimant] || v.Claimant == "-" { // an earlier attempt of this call, perhaps, or of one that has withdrawn: it has no tick
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

var errOwnMark = errors.New("an attempt that came to nothing has its mark there")

// taken tells whether most masters have the mark for one other claimant. Of different ones, none may get it.
func (p *poll) taken() bool {
	for _, n := range p.by {
		if n >= p.q.need {
			return true
		}
	}
	return false
}

// withdraw takes the mark back where it was raised or may have been, and waits for a moment: the next attempt would
// find this one in its way.
func (p *poll) withdraw() {
	timer := p.q.locker.timers.Get(p.q.patience(p.cfg.ttl))
	defer p.q.locker.timers.Rest(timer)
	var known []chan struct{}
	for i, m := range p.q.nodes {
		open := p.calls[i] != nil
		if !open && !p.unsure[i] {
			continue
		}
		done := make(chan struct{})
		if !open {
			known = append(known, done)
		}
		p.q.locker.gate.Join()
		go func() {
			defer p.q.locker.gate.Leave()
			defer close(done)
			for range triesOfOne {
				c := &redisconn.Call{Urgent: true}
				m.Send(p.q.locker.gate.Over, c.Set(protocol.Withdraw(c.Room[:0], &p.names, p.gone, p.claimant)))
				<-c.Done
				if c.Err == nil || permanent(c.Err) {
					return
				}
			}
		}()
	}
	for _, done := range known {
		select {
		case <-done:
		case <-timer.C:
			return
		}
	}
}

// verdict is what an attempt that failed tells, in the form of claim.lua.
func (p *poll) verdict() (any, error) {
	need, all := p.q.need, len(p.q.nodes)
	for _, code := range []protocol.ClaimCode{protocol.ClaimEarly, protocol.ClaimLate} {
		if p.out[code] > all-need {
			return []any{int64(code), p.now}, nil
		}
	}
	if p.taken() {
		return int64(0), nil
	}
	out := &quorumError{all: p.errs, need: all - need + 1}
	if len(p.young.Nodes) > 0 {
		out.young = &p.young
	}
	if len(out.all) == 0 {
		out.all = []error{errors.New("the masters do not agree on who claimed it")}
		answered := p.raised
		for _, n := range p.by {
			answered += n
		}
		if answered < need {
			out.all = []error{redisconn.ErrSilence}
		}
	}
	return nil, out
}

// inspect tells what most masters say, in the form of inspect.lua.
func (q *quorum) inspect(ctx context.Context, names protocol.Names) *redisconn.Call {
	c := &redisconn.Call{At: q.locker.clock.Now(), Done: make(chan struct{})}
	if c.Err = q.dependent(); c.Err != nil {
		close(c.Done)
		return c
	}
	answers := make(chan answer, len(q.nodes))
	for i, m := range q.nodes {
		one := new(redisconn.Call)
		one.Then = func(any, error) { answers <- answer{i, one} }
		m.Send(ctx, one.Set(protocol.Inspect(one.Room[:0], &names)))
	}
	q.locker.gate.Join()
	go func() {
		defer q.locker.gate.Leave()
		defer close(c.Done)
		timer := q.locker.timers.Get(q.patience(q.locker.cfg.ttl))
		defer q.locker.timers.Rest(timer)
		v := survey{need: q.need, left: len(q.nodes), lefts: map[string][]int64{}, tokens: map[string]int64{}}
		for {
			select {
			case r := <-answers:
				v.count(q.nodes[r.i].name, r.call)
			case <-timer.C:
				v.errs, v.left = append(v.errs, redisconn.ErrSilence), 0
			case <-ctx.Done():
				v.errs, v.left = append(v.errs, ctx.Err()), 0
			}
			if val, err, decided := v.decide(); decided {
				c.Val, c.Err = val, err
				return
			}
		}
	}()
	return c
}

// survey collects the answers to inspect.
type survey struct {
	need, left     int
	answered       int
	lefts          map[string][]int64 // by the value of the lock, "" where it is free
	tokens         map[string]int64
	token, waiting int64
	errs           []error
}

func (v *survey) count(name string, c *redisconn.Call) {
	v.left--
	r, ok := protocol.ReadInspected(c.Val)
	switch {
	case c.Err != nil:
		v.errs = append(v.errs, &memberError{name, c.Err})
		return
	case !ok:
		v.errs = append(v.errs, &memberError{name, errReply})
		return
	}
	v.answered++
	switch r.Left {
	case protocol.NoExpiry:
		r.Left = math.MaxInt64
	case protocol.Free:
		r.Value = ""
	}
	v.lefts[r.Value] = append(v.lefts[r.Value], r.Left)
	v.tokens[r.Value] = max(v.tokens[r.Value], r.Token) // others may have proposed larger ones, and lost
	v.token, v.waiting = max(v.token, r.Token), max(v.waiting, r.Waiting)
}

func (v *survey) decide() (val any, err error, decided bool) {
	most := 0
	for value, lefts := range v.lefts {
		if value == "" {
			continue
		}
		most = max(most, len(lefts))
		if len(lefts) >= v.need {
			slices.Sort(lefts)
			left := lefts[len(lefts)-v.need]
			if left == math.MaxInt64 {
				left = protocol.NoExpiry
			}
			return []any{value, left, v.tokens[value], v.waiting}, nil, true
		}
	}
	switch {
	case v.answered >= v.need && most+v.left < v.need:
		return []any{"", int64(protocol.Free), v.token, v.waiting}, nil, true
	case v.left == 0 || v.answered+v.left < v.need:
		return nil, &quorumError{all: v.errs, need: len(v.errs)}, true
	}
	return nil, nil, false
}
