package core

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// maxRounds bounds how often an attempt raises its token: once is enough unless others raise theirs meanwhile.
const maxRounds = 4

// What became of an attempt: decided, and then its ballot's, or left, and then its own.
const (
	attemptRuns int32 = iota
	attemptDecided
	attemptLeft
)

// attempt is one look at several masters: it tries to get the lock on most of them.
//
// Its token is proposed, since no master can know what the others have issued. A master takes it if it is larger than
// all that it has recorded, and records it; else it says how large it must be. Two majorities have a master in common, so
// a later token is larger than an earlier one, if a lock counts only those masters that recorded the very token that it
// ends up with: the token that is raised for one master must be confirmed by the others. Counting the answers to a
// lower one, or taking the largest of what each master counts up, tokens fall.
type attempt struct {
	b     *ballot
	owner string
	parts []*tenure // by master
	place string    // in the plan, where it waits in line
	state atomic.Int32

	token   int64
	began   time.Duration
	seen    int64  // the largest that a master told of
	mayHave uint64 // the masters that a renewal may have brought the lock back on; guarded by the ballot's mutex

	ballots []vote
	answers chan answer
	undone  sync.Once
}

// vote is what is known of one master.
type vote struct {
	call    *redisconn.Call // the latest, unanswered; else nil
	granted int64           // the token that it recorded; 0: none
	low     bool            // it would grant a higher one
	held    bool            // it has it for another, or keeps it for another
	value   string
	left    int64
	err     error
	young   int64 // with err: it will not vote for so many ms, -1: as long as it does not tell its age
}

type answer struct {
	i    int
	call *redisconn.Call
}

func newAttempt(b *ballot) *attempt {
	a := &attempt{b: b, seen: b.seen, ballots: make([]vote, len(b.q.nodes)), answers: make(chan answer, maxRounds*len(b.q.nodes))}
	first := new(tenure)
	first.init(b.q.nodes[0].node, b.names, b.cfg, b.block)
	a.owner = first.owner
	a.parts = append(a.parts, first)
	for _, m := range b.q.nodes[1:] {
		t := &tenure{node: m.node, key: first.key, stake: first.stake}
		a.parts = append(a.parts, t)
	}
	return a
}

// run asks all masters at once and returns as soon as most have granted, or as soon as most cannot any more.
func (a *attempt) run(ctx context.Context) verdict {
	q := a.b.q
	if err := q.dependent(); err != nil {
		return verdict{err: err}
	}
	a.began = q.locker.clock.Now().Mono
	a.token = max(q.proposal(), a.seen+1)
	if !q.credible(a.token) {
		a.token = q.proposal()
	}
	for range maxRounds {
		if v, decided := a.round(ctx); decided {
			return v
		}
		// Larger than the block that some recorded, and than the clocks of the others, which have gone on.
		a.token = max(a.token+int64(a.b.block), a.seen+1, q.proposal())
	}
	return a.failure(errContested)
}

// round proposes one token. It is undecided where a higher one is needed.
func (a *attempt) round(ctx context.Context) (v verdict, decided bool) {
	q := a.b.q
	timer := q.locker.timers.Get(q.patience(a.b.cfg.ttl))
	defer q.locker.timers.Rest(timer)
	began := q.locker.clock.Now().Mono
	a.propose(ctx)
	for hurried, pressed := false, false; ; {
		votes, open, higher := a.sum()
		switch {
		case votes >= q.need && q.dependent() == nil:
			return a.success(), true
		case votes >= q.need:
			return a.failure(nil), true
		case votes+open+higher < q.need && (open == 0 || a.clear()):
			return a.failure(nil), true
		case votes+open+higher < q.need: // but who has the lock, or whether anybody can tell, depends on the others
		case votes+open < q.need:
			return v, false
		case votes+higher >= q.need && !hurried:
			// Those that have answered are enough, with a higher token. The others may hang: they get as long again as
			// those took.
			hurried = true // to raise
			timer.Reset(min(q.patience(a.b.cfg.ttl), max(time.Millisecond, q.locker.clock.Now().Mono-began)))
		case !hurried && !pressed && a.contended():
			// Some of those that refused may be free again in a moment: better to ask them anew than to wait for one that
			// hangs.
			pressed = true
			timer.Reset(min(q.patience(a.b.cfg.ttl), a.usual()) - (q.locker.clock.Now().Mono - began))
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

// propose asks all masters that may grant the token and have not.
func (a *attempt) propose(ctx context.Context) {
	plan := a.plan()
	for i, t := range a.parts {
		v := &a.ballots[i]
		if v.held || v.err != nil || v.granted == a.token {
			continue
		}
		if v.call != nil {
			t.leave(v.call) // it may still be answered; then a.count takes it
		}
		if !t.node.Responsive(a.b.q.patience(a.b.cfg.ttl)) {
			v.call, v.err = nil, redisconn.ErrSilence // as it has been, for many before
			continue
		}
		c := t.call()
		c.Urgent = c.Urgent || v.call != nil
		c.Then = func(any, error) {
			a.b.q.seen(a.b.q.nodes[i], c) // also of one that comes after the decision
			a.answers <- answer{i, c}
		}
		v.call, v.low = c, false
		t.node.Send(ctx, c.Set(protocol.Vote(c.Room[:0], t.key, &a.b.names, &t.names.Gone, &t.owner, &plan)))
	}
}

// plan is the second argument of vote.lua.
func (a *attempt) plan() string {
	b := a.b
	return protocol.Proposal{
		Token: a.token, Lease: b.cfg.ttl, Block: b.block, Quarantine: b.q.quarantine, Behind: tokenBehind,
		Passed: b.q.locker.clock.Now().Mono - a.began, Ahead: tokenAhead, Started: b.q.quarantine > 0 || !b.q.allKnown(), Place: a.place,
	}.Plan()
}

// count takes an answer into account.
func (a *attempt) count(r answer) {
	v, t := &a.ballots[r.i], a.parts[r.i]
	if v.call == r.call {
		v.call = nil
	} else if r.call.Err != nil {
		return // an older one; the latest is still to come
	}
	m := a.b.q.nodes[r.i]
	voted, err := t.readVote(r.call)
	if err != nil {
		v.err = err
		return
	}
	n := voted.N
	switch voted.Code {
	case protocol.VoteGranted:
		if left := m.suspected() - a.b.q.locker.clock.Now().Mono; left > 0 { // by the clock of the server it is older than that
			v.err, v.young, v.granted = errYoung, max(left.Milliseconds(), 1), 0
			return
		}
		v.granted = max(v.granted, n)
	case protocol.VoteHeld:
		v.held, v.value, v.left = true, voted.Value, voted.Left
		a.seen = max(a.seen, n)
	case protocol.VoteLow:
		if !a.b.q.credible(n) {
			v.err = errSkewed
			return
		}
		v.low = n >= a.token // or it answers a lower proposal than the latest
		a.seen = max(a.seen, n)
	case protocol.VoteHigh:
		v.err = errSkewed
	case protocol.VoteYoung:
		v.err, v.young = errYoung, n
	case protocol.VoteExhausted:
		v.err = errExhausted
	default:
		v.err = errForgotten
	}
}

var (
	errYoung  = errors.New("it started a short time ago and may have forgotten a lock")
	errSkewed = errors.New("its clock is too far from ours or from that of the other masters")
)

// sum is how many masters have granted the token, have not answered, and would grant a higher one.
func (a *attempt) sum() (votes, open, higher int) {
	for i := range a.ballots {
		switch v := &a.ballots[i]; {
		case v.granted == a.token:
			votes++
		case v.call != nil:
			open++
		case v.granted > 0 || v.low:
			higher++
		}
	}
	return votes, open, higher
}

// clear tells whether the refusals alone, or the failures alone, rule a majority out.
func (a *attempt) clear() bool {
	held, failed := 0, 0
	for i := range a.ballots {
		switch v := &a.ballots[i]; {
		case v.held:
			held++
		case v.err != nil:
			failed++
		}
	}
	most := len(a.ballots) - a.b.q.need
	return held > most || failed > most
}

func (a *attempt) contended() bool {
	for i := range a.ballots {
		if a.ballots[i].held {
			return true
		}
	}
	return false
}

// usual is how long those that have not answered may well take, by how long they took the last time.
func (a *attempt) usual() (d time.Duration) {
	for i := range a.ballots {
		if a.ballots[i].call == nil {
			continue
		}
		took := time.Duration(a.b.q.nodes[i].took.Load())
		if took == 0 {
			return forever
		}
		d = max(d, 3*took+10*time.Millisecond)
	}
	return d
}

// success lets the stragglers go on: the more masters have the lock, the better. Those who release look what came of
// them.
func (a *attempt) success() verdict {
	for i, t := range a.parts {
		if c := a.ballots[i].call; c != nil {
			t.pending = append(t.pending, c)
		}
	}
	return verdict{token: a.token}
}

// late is for masters that did not answer in time.
func (a *attempt) late() {
	for i := range a.ballots {
		if v := &a.ballots[i]; v.call != nil {
			v.err = redisconn.ErrSilence
		}
	}
}

// failure is what an attempt tells that did not get the lock.
func (a *attempt) failure(err error) verdict {
	q := a.b.q
	var held *vote
	holders, failed, granted, same := 0, 0, 0, true
	for i := range a.ballots {
		v := &a.ballots[i]
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
			a.parts[i].leave(c)
			v.call = nil
		}
	}
	var out verdict
	if dependent := q.dependent(); dependent != nil {
		out.err = dependent
		return out
	}
	if held == nil || failed > len(q.nodes)-q.need {
		out.err = a.reason(err)
		return out
	}
	out.held, out.place = newHeldError(a.b.names.Lock, held.left, held.value), 1
	out.split = !same || holders < q.need && granted > 0
	return out
}

// undo ends an attempt that failed, or that nobody wants any more, in the background on every master that may have
// granted it, also where the answer did not come. A master that refused is left alone.
//
// The next in line is told, unless waiter is "-": where somebody has most of the masters, others would only look in
// vain, undo, and have the next one told.
func (a *attempt) undo(waiter string) {
	a.undone.Do(func() {
		for _, t := range a.parts {
			t.waiter = waiter
			t.undo()
		}
	})
}

// readVote takes an answer of vote.lua into account for one master, and returns it.
func (t *tenure) readVote(c *redisconn.Call) (protocol.Voted, error) {
	if c.Err != nil && redisconn.Harmless(c.Err) {
		return protocol.Voted{}, c.Err
	}
	t.sent = max(t.sent, c.At.Mono)
	if c.Err != nil {
		t.tainted = true
		return protocol.Voted{}, c.Err
	}
	v, ok := protocol.ReadVoted(c.Val)
	if !ok {
		t.tainted = true
		return v, errReply
	}
	if v.Code == protocol.VoteGranted {
		t.token = max(t.token, v.N)
	}
	return v, nil
}
