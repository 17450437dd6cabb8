package redlock

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
)

// maxRounds bounds how often an attempt raises its token. Once is enough unless others raise theirs meanwhile.
const maxRounds = 4

// The state of an attempt. A decided attempt is its owner's. An attempt that was left undoes itself.
const (
	attemptRuns int32 = iota
	attemptDecided
	attemptLeft
)

// attempt is one look at several masters. It tries to get the lock on most of them.
//
// It proposes a token, because no master can know what the others have issued. A master takes the token if it is larger
// than all that the master has recorded, and records it. Otherwise it answers how large the token must be. Two
// majorities have a master in common. So a later token is larger than an earlier one, as long as a lock counts only
// those masters that recorded the very token that it ends up with. If the token has to be raised for one master, the
// others must therefore confirm the raised one. Tokens would fall if the lock counted the answers to a lower one, or
// took the largest of what each master counts up.
type attempt struct {
	o       *owner
	q       *masters
	id      string
	ballots []*ballot // by master
	votes   []vote
	place   string // its place in line, for the plan; "" if it does not wait
	state   atomic.Int32

	token   int64
	began   time.Duration
	highest int64  // the largest token that a master reported
	mayHave uint64 // the masters on which a renewal may have brought the lock back; guarded by the owner's mutex

	answers chan answer
	undone  sync.Once
}

// ballot is the tenure on one master.
type ballot struct {
	single.Tenure
	renewals int             // how many were not answered
	renewing *redisconn.Call // the scheduler's latest
}

// vote is what is known of one master.
type vote struct {
	call    *redisconn.Call // the latest, while it is unanswered; else nil
	granted int64           // the token that the master recorded; 0: none
	low     bool            // it would grant a higher token
	held    bool            // another client holds the lock there, or the master keeps the lock for one
	value   string
	left    int64
	err     error
	young   int64 // with err: for how many ms the master will not vote; -1: unknown, it does not report its age
}

func newAttempt(o *owner) *attempt {
	n := len(o.q.all)
	a := &attempt{o: o, q: o.q, highest: o.highest, ballots: make([]*ballot, n), votes: make([]vote, n), answers: make(chan answer, maxRounds*n)}
	names := o.names
	names.Anew(o.q.seal, o.want.Label)
	a.id = names.Owner()
	for i, m := range o.q.all {
		p := new(ballot)
		p.Start(m.Conn, p, names, o.want.TTL)
		p.Waiter = new(string)
		a.ballots[i] = p
	}
	return a
}

// run asks all masters at once. It returns as soon as most have granted, or as soon as most no longer can.
func (a *attempt) run(ctx context.Context) single.Verdict {
	q := a.q
	if err := q.dependent(); err != nil {
		return single.Verdict{Err: err}
	}
	a.began = q.env.Now().Mono
	a.token = max(q.proposal(), a.highest+1)
	if !q.credible(a.token) {
		a.token = q.proposal()
	}
	for range maxRounds {
		if v, decided := a.round(ctx); decided {
			return v
		}
		// Larger than the block that some masters recorded, and than the clocks of the others, which have gone on.
		a.token = max(a.token+int64(a.o.want.Block), a.highest+1, q.proposal())
	}
	return a.failure(errContested)
}

// round proposes one token. It is undecided if a higher one is needed.
func (a *attempt) round(ctx context.Context) (v single.Verdict, decided bool) {
	q := a.q
	timer := q.env.Timers.Get(q.patience(a.o.want.TTL))
	defer q.env.Timers.Rest(timer)
	began := q.env.Now().Mono
	a.propose(ctx)
	for hurried, pressed := false, false; ; {
		granted, open, higher := a.sum()
		switch {
		case granted >= q.need && q.dependent() == nil:
			return a.success(), true
		case granted >= q.need:
			return a.failure(nil), true
		case granted+open+higher < q.need && (open == 0 || a.clear()):
			return a.failure(nil), true
		case granted+open+higher < q.need: // but the rest decide which client holds the lock, or whether that can be known
		case granted+open < q.need:
			return v, false
		case granted+higher >= q.need && !hurried:
			// Those that have answered are enough, with a higher token. The others may hang: they get as long again as
			// those took.
			hurried = true // to raise the token
			timer.Reset(min(q.patience(a.o.want.TTL), max(time.Millisecond, q.env.Now().Mono-began)))
		case !hurried && !pressed && a.contended():
			// Some of those that refused may be free again in a moment. It is better to ask them anew than to wait for
			// one that hangs.
			pressed = true
			timer.Reset(min(q.patience(a.o.want.TTL), a.usual()) - (q.env.Now().Mono - began))
		}
		select {
		case r := <-a.answers:
			a.count(r)
		case <-timer.C:
			if hurried {
				return v, false
			}
			if !pressed {
				a.late()
			}
			return a.failure(nil), true
		case <-ctx.Done():
			return a.failure(ctx.Err()), true
		}
	}
}

var errContested = errors.New("the masters do not agree on a token")

// propose asks all masters that may grant the token and have not yet.
func (a *attempt) propose(ctx context.Context) {
	plan := a.plan()
	for i, p := range a.ballots {
		v, m := &a.votes[i], a.q.all[i]
		if v.held || v.err != nil || v.granted == a.token {
			continue
		}
		if v.call != nil {
			p.Leave(v.call) // it may still be answered; then count takes the answer
		}
		if !m.Responsive(a.q.patience(a.o.want.TTL)) {
			v.call, v.err = nil, redisconn.ErrSilence // it has not answered many commands before
			continue
		}
		c := &redisconn.Call{Patience: a.q.patience(a.o.want.TTL), Then: func(c *redisconn.Call) {
			a.q.observe(m, c) // even if it comes after the decision
			a.answers <- answer{i, c}
		}}
		v.call, v.low = c, false
		p.Conn.Send(ctx, c.Set(protocol.Vote(c.Buf[:0], &a.o.names, &p.Names.Gone, &p.ID, &plan)))
	}
}

// plan returns the second argument of vote.lua.
func (a *attempt) plan() string {
	q, want := a.q, &a.o.want
	return protocol.Proposal{
		Token: a.token, Lease: want.TTL, Block: want.Block, Quarantine: q.quarantine, Behind: tokenBehind,
		Passed: q.env.Now().Mono - a.began, Ahead: tokenAhead, Started: q.quarantine > 0 || slices.Contains(q.runs(), ""), Place: a.place,
	}.Plan()
}

// count evaluates an answer.
func (a *attempt) count(r answer) {
	v, p := &a.votes[r.i], a.ballots[r.i]
	if v.call == r.call {
		v.call = nil
	} else if r.call.Err != nil {
		return // of an older call; the answer to the latest is still to come
	}
	m := a.q.all[r.i]
	voted, err := p.read(r.call)
	if err != nil {
		v.err = err
		return
	}
	n := voted.N
	switch voted.Code {
	case protocol.VoteGranted:
		if left := m.suspected() - a.q.env.Now().Mono; left > 0 { // it has started anew, though by its own clock it is old enough
			v.err, v.young, v.granted = errYoung, max(left.Milliseconds(), 1), 0
			return
		}
		v.granted = max(v.granted, n)
	case protocol.VoteHeld:
		v.held, v.value, v.left = true, voted.Value, voted.Left
		a.highest = max(a.highest, n)
	case protocol.VoteLow:
		if !a.q.credible(n) {
			v.err = errSkewed
			return
		}
		v.low = n >= a.token // otherwise it answers an earlier, lower proposal
		a.highest = max(a.highest, n)
	case protocol.VoteHigh:
		v.err = errSkewed
	case protocol.VoteYoung:
		v.err, v.young = errYoung, n
	case protocol.VoteExhausted:
		v.err = protocol.ErrExhausted
	default:
		v.err = errUndone
	}
}

var (
	errUndone = errors.New("the attempt was undone")
	errYoung  = errors.New("it started too recently and may have forgotten a lock")
	errSkewed = errors.New("its clock is too far from ours or from that of the other masters")
)

// sum counts the masters that have granted the token, those that have not answered, and those that would grant a higher
// one.
func (a *attempt) sum() (granted, open, higher int) {
	for i := range a.votes {
		switch v := &a.votes[i]; {
		case v.granted == a.token:
			granted++
		case v.call != nil:
			open++
		case v.granted > 0 || v.low:
			higher++
		}
	}
	return granted, open, higher
}

// clear reports whether the refusals alone, or the failures alone, rule out a majority.
func (a *attempt) clear() bool {
	held, failed := 0, 0
	for i := range a.votes {
		switch v := &a.votes[i]; {
		case v.held:
			held++
		case v.err != nil:
			failed++
		}
	}
	most := len(a.votes) - a.q.need
	return held > most || failed > most
}

func (a *attempt) contended() bool {
	for i := range a.votes {
		if a.votes[i].held {
			return true
		}
	}
	return false
}

// usual returns how long the masters that have not answered may well take, by how long their latest answers took.
func (a *attempt) usual() (d time.Duration) {
	for i := range a.votes {
		if a.votes[i].call == nil {
			continue
		}
		took := time.Duration(a.q.all[i].took.Load())
		if took == 0 {
			return math.MaxInt64
		}
		d = max(d, 3*took+10*time.Millisecond)
	}
	return d
}

// success lets late calls go on: the more masters have the lock, the better. A release looks at their answers.
func (a *attempt) success() single.Verdict {
	for i, p := range a.ballots {
		if c := a.votes[i].call; c != nil {
			p.Keep(c)
		}
	}
	return single.Verdict{Token: a.token}
}

// late marks the masters that did not answer in time.
func (a *attempt) late() {
	for i := range a.votes {
		if v := &a.votes[i]; v.call != nil {
			v.err = redisconn.ErrSilence
		}
	}
}

// failure returns the verdict of an attempt that did not get the lock.
func (a *attempt) failure(err error) single.Verdict {
	q := a.q
	var held *vote
	holders, failed, granted, same := 0, 0, 0, true
	for i := range a.votes {
		v := &a.votes[i]
		switch {
		case v.held:
			holders++
			if held == nil || held.value == "" || v.value == held.value && v.left > held.left {
				if held != nil && held.value != "" && v.value != held.value {
					same = false
				}
				held = v
			} else if v.value != held.value && v.value != "" {
				same = false
			}
		case v.err != nil:
			failed++
		case v.granted > 0:
			granted++
		}
		if c := v.call; c != nil {
			a.ballots[i].Leave(c)
			v.call = nil
		}
	}
	if dependent := q.dependent(); dependent != nil {
		return single.Verdict{Err: dependent}
	}
	if held == nil || failed > len(q.all)-q.need {
		return single.Verdict{Err: a.reason(err)}
	}
	return single.Verdict{
		Held: true, Left: held.left, Label: protocol.LabelOf(held.value), Place: 1, Split: !same || holders < q.need && granted > 0,
	}
}

// undo ends an attempt that failed, or that nobody wants any more. It does so in the background, on every master that
// may have granted the attempt, even if the answer did not come. It leaves alone a master that refused.
//
// The masters notify the next in line, unless waiter is "-". If somebody has most of the masters, others would only
// look in vain, undo, and have the next one notified.
func (a *attempt) undo(waiter string) {
	a.undone.Do(func() {
		for _, p := range a.ballots {
			p.Waiter = &waiter
			p.Undo()
		}
	})
}

// Take is read for an answer that no call has waited for.
func (p *ballot) Take(c *redisconn.Call) { _, _ = p.read(c) }

// read evaluates an answer of vote.lua and returns it.
func (p *ballot) read(c *redisconn.Call) (protocol.Voted, error) {
	if !p.Note(c) {
		return protocol.Voted{}, c.Err
	}
	v, ok := protocol.ReadVoted(c.Val)
	if !ok {
		p.Tainted = true
		return v, protocol.ErrReply
	}
	if v.Code == protocol.VoteGranted {
		p.Token = max(p.Token, v.N)
	}
	return v, nil
}
