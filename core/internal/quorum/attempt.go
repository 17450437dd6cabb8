package quorum

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

// maxRounds bounds how often an attempt raises its token: once is enough unless others raise theirs meanwhile.
const maxRounds = 4

// What became of an attempt: decided, and then its owner's, or left, and then its own.
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
	o     *Owner
	q     *Masters
	id    string
	parts []*part // by master
	votes []vote
	place string // in the plan, where it waits in line
	state atomic.Int32

	token   int64
	began   time.Duration
	seen    int64  // the largest that a master told of
	mayHave uint64 // the masters that a renewal may have brought the lock back on; guarded by the owner's mutex

	answers chan answer
	undone  sync.Once
}

// part is the tenure on one master.
type part struct {
	single.Tenure
	waiter   string // see forget.lua
	renewals int    // that were not answered
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

func newAttempt(o *Owner) *attempt {
	n := len(o.q.all)
	a := &attempt{o: o, q: o.q, seen: o.seen, parts: make([]*part, n), votes: make([]vote, n), answers: make(chan answer, maxRounds*n)}
	names := o.names
	names.Anew(o.want.Label)
	a.id = names.Owner()
	for i, m := range o.q.all {
		p := new(part)
		p.Start(m.Conn, p, names, "", o.want.TTL)
		a.parts[i] = p
	}
	return a
}

// run asks all masters at once and returns as soon as most have granted, or as soon as most cannot any more.
func (a *attempt) run(ctx context.Context) single.Verdict {
	q := a.q
	if err := q.Dependent(); err != nil {
		return single.Verdict{Err: err}
	}
	a.began = q.env.Now().Mono
	a.token = max(q.proposal(), a.seen+1)
	if !q.credible(a.token) {
		a.token = q.proposal()
	}
	for range maxRounds {
		if v, decided := a.round(ctx); decided {
			return v
		}
		// Larger than the block that some recorded, and than the clocks of the others, which have gone on.
		a.token = max(a.token+int64(a.o.want.Block), a.seen+1, q.proposal())
	}
	return a.failure(errContested)
}

// round proposes one token. It is undecided where a higher one is needed.
func (a *attempt) round(ctx context.Context) (v single.Verdict, decided bool) {
	q := a.q
	timer := q.env.Timers.Get(q.Patience(a.o.want.TTL))
	defer q.env.Timers.Rest(timer)
	began := q.env.Now().Mono
	a.propose(ctx)
	for hurried, pressed := false, false; ; {
		granted, open, higher := a.sum()
		switch {
		case granted >= q.need && q.Dependent() == nil:
			return a.success(), true
		case granted >= q.need:
			return a.failure(nil), true
		case granted+open+higher < q.need && (open == 0 || a.clear()):
			return a.failure(nil), true
		case granted+open+higher < q.need: // but which client has the lock, or whether that can be told, depends on the others
		case granted+open < q.need:
			return v, false
		case granted+higher >= q.need && !hurried:
			// Those that have answered are enough, with a higher token. The others may hang: they get as long again as
			// those took.
			hurried = true // to raise
			timer.Reset(min(q.Patience(a.o.want.TTL), max(time.Millisecond, q.env.Now().Mono-began)))
		case !hurried && !pressed && a.contended():
			// Some of those that refused may be free again in a moment: better to ask them anew than to wait for one that
			// hangs.
			pressed = true
			timer.Reset(min(q.Patience(a.o.want.TTL), a.usual()) - (q.env.Now().Mono - began))
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
	for i, p := range a.parts {
		v, m := &a.votes[i], a.q.all[i]
		if v.held || v.err != nil || v.granted == a.token {
			continue
		}
		c := &redisconn.Call{Urgent: v.call != nil}
		if v.call != nil {
			p.Leave(v.call) // it may still be answered; then a.count takes it
		}
		if !m.Responsive(a.q.Patience(a.o.want.TTL)) {
			v.call, v.err = nil, redisconn.ErrSilence // as it has been, for many before
			continue
		}
		p.Prepare(c)
		c.Then = func(any, error) {
			a.q.seen(m, c) // also of one that comes after the decision
			a.answers <- answer{i, c}
		}
		v.call, v.low = c, false
		p.Conn.Send(ctx, c.Set(protocol.Vote(c.Room[:0], p.Key, &a.o.names, &p.Names.Gone, &p.ID, &plan)))
	}
}

// plan is the second argument of vote.lua.
func (a *attempt) plan() string {
	q, want := a.q, &a.o.want
	return protocol.Proposal{
		Token: a.token, Lease: want.TTL, Block: want.Block, Quarantine: q.Quarantine, Behind: tokenBehind,
		Passed: q.env.Now().Mono - a.began, Ahead: tokenAhead, Started: q.Quarantine > 0 || slices.Contains(q.runs(), ""), Place: a.place,
	}.Plan()
}

// count takes an answer into account.
func (a *attempt) count(r answer) {
	v, p := &a.votes[r.i], a.parts[r.i]
	if v.call == r.call {
		v.call = nil
	} else if r.call.Err != nil {
		return // an older one; the latest is still to come
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
		if left := m.suspected() - a.q.env.Now().Mono; left > 0 { // by the clock of the server it is older than that
			v.err, v.young, v.granted = errYoung, max(left.Milliseconds(), 1), 0
			return
		}
		v.granted = max(v.granted, n)
	case protocol.VoteHeld:
		v.held, v.value, v.left = true, voted.Value, voted.Left
		a.seen = max(a.seen, n)
	case protocol.VoteLow:
		if !a.q.credible(n) {
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
		v.err = protocol.ErrExhausted
	default:
		v.err = errUndone
	}
}

var (
	errUndone = errors.New("the attempt was undone")
	errYoung  = errors.New("it started a short time ago and may have forgotten a lock")
	errSkewed = errors.New("its clock is too far from ours or from that of the other masters")
)

// sum is how many masters have granted the token, have not answered, and would grant a higher one.
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

// clear tells whether the refusals alone, or the failures alone, rule a majority out.
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

// usual is how long those that have not answered may well take, by how long they took the last time.
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

// success lets the stragglers go on: the more masters have the lock, the better. A release looks what came of
// them.
func (a *attempt) success() single.Verdict {
	for i, p := range a.parts {
		if c := a.votes[i].call; c != nil {
			p.Straggles(c)
		}
	}
	return single.Verdict{Token: a.token}
}

// late is for masters that did not answer in time.
func (a *attempt) late() {
	for i := range a.votes {
		if v := &a.votes[i]; v.call != nil {
			v.err = redisconn.ErrSilence
		}
	}
}

// failure is what an attempt tells that did not get the lock.
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
			a.parts[i].Leave(c)
			v.call = nil
		}
	}
	if dependent := q.Dependent(); dependent != nil {
		return single.Verdict{Err: dependent}
	}
	if held == nil || failed > len(q.all)-q.need {
		return single.Verdict{Err: a.reason(err)}
	}
	return single.Verdict{
		Held: true, Left: held.left, Label: protocol.LabelOf(held.value), Place: 1, Split: !same || holders < q.need && granted > 0,
	}
}

// undo ends an attempt that failed, or that nobody wants any more, in the background on every master that may have
// granted it, also where the answer did not come. A master that refused is left alone.
//
// The next in line is told, unless waiter is "-": where somebody has most of the masters, others would only look in
// vain, undo, and have the next one told.
func (a *attempt) undo(waiter string) {
	a.undone.Do(func() {
		for _, p := range a.parts {
			p.waiter = waiter
			p.Undo()
		}
	})
}

// Take is read for an answer that nobody waited for.
func (p *part) Take(c *redisconn.Call) { _, _ = p.read(c) }

// read takes an answer of vote.lua into account, and returns it.
func (p *part) read(c *redisconn.Call) (protocol.Voted, error) {
	if !p.Took(c) {
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

// Free makes c a release.
func (p *part) Free(c *redisconn.Call, tainted bool) {
	c.Set(protocol.Yield(c.Room[:0], p.Key, &p.Names, &p.ID, &c.Number, tainted, p.waiter))
}
