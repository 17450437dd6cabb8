// Package quorum is a lock on several independent Redis masters, of which most have to agree. The algorithm is that of the
// Redis documentation, "Distributed Locks with Redis".
package quorum

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

const (
	// tokenBehind and tokenAhead are how far a proposed token may be from the clock of a master, which is as much as
	// the clocks of most masters may differ. See vote.lua.
	tokenBehind = 2 * time.Second
	tokenAhead  = 2 * time.Second

	// tokenLead is by how much a proposed token is ahead of the clocks of the masters when it gets there, as far as can
	// be told: enough for requests to take longer than the one before. tokenSpread is how far the clock of a master may be
	// ahead of most, and its requests take longer, for it to be counted in.
	tokenLead   = 10 * time.Millisecond
	tokenSpread = time.Second

	minPatience = 50 * time.Millisecond
	maxPatience = time.Second
	// rounds is how many node timeouts a call may take: clients that ask at once get in each other's way.
	rounds = 5
)

// Config is how masters are used.
type Config struct {
	Quarantine  time.Duration // for how long after its start a master does not vote; 0: it does at once
	NodeTimeout time.Duration // 0: by the TTL
	Inbox       string        // the channel on which masters tell that a lock is free
	Report      func(key string, err error)
}

// Covered is the longest lease that a quarantine of d covers: beside the lease, the bounds on tokens have to pass, see
// vote.lua, and clocks run apart.
func Covered(d time.Duration) time.Duration {
	return (d - tokenBehind - tokenAhead - time.Second) * 100 / 101
}

// Masters are the several.
type Masters struct {
	Config
	env      *timing.Env
	all      []*member
	need     int // a majority
	twins    atomic.Pointer[string]
	twinning sync.Mutex // one search for twins at a time, or one that saw less could have the last word

	mu      sync.Mutex // guards what follows
	waiters map[string]*Owner
	up      bool // most inboxes are
	news    chan struct{}
}

// member is one of them.
type member struct {
	*redisconn.Conn
	name  string // its address
	inbox *single.Inbox
	told  atomic.Int64 // when a failing renewal was reported last

	offset atomic.Int64 // its clock minus ours, in µs
	lag    atomic.Int64 // its clock when a request gets there minus ours when it is sent, in µs
	known  atomic.Bool  // both were measured
	took   atomic.Int64 // the latest answer to a look, from its sending on

	mu      sync.Mutex
	run     string        // the id of its run
	suspect time.Duration // until then, by our own clock, it does not count: it started anew while we knew it
}

// New is the masters behind clients.
func New(clients []*redis.Client, env *timing.Env, c Config) *Masters {
	q := &Masters{Config: c, env: env, need: len(clients)/2 + 1, waiters: map[string]*Owner{}, news: make(chan struct{})}
	for i, client := range clients {
		m := &member{Conn: redisconn.New(client, env), name: client.Options().Addr}
		m.inbox = single.NewInbox(m.Conn, c.Inbox, func(g protocol.Grant, names protocol.Names) { q.nudged(i, g.Owner, names) })
		told := false
		m.inbox.Failed = func(err error, was bool) {
			if was || !told { // once for an outage: the other masters go on
				told = true
				q.Report("", fmt.Errorf("holdfast: %s does not tell waiters, as SUBSCRIBE failed: %w", m.name, err))
			}
		}
		m.inbox.Turned = q.turned
		q.all = append(q.all, m)
	}
	return q
}

// report tells whether a failing renewal is to be told of, at now: once in a while for all locks, not to drown the rest.
func (m *member) report(now, while time.Duration) bool {
	last := m.told.Load()
	return (last == 0 || int64(now)-last >= int64(while)) && m.told.CompareAndSwap(last, int64(now))
}

// Several is true: a majority decides.
func (q *Masters) Several() bool { return true }

// Many is true: one may hang while the others serve.
func (q *Masters) Many() bool { return true }

// Patience is for how long one master is waited for while too few of the others have answered.
func (q *Masters) Patience(ttl time.Duration) time.Duration {
	if q.NodeTimeout > 0 {
		return q.NodeTimeout
	}
	return min(max(ttl/10, minPatience), maxPatience)
}

// Allowance is for all that one call may need.
func (q *Masters) Allowance(ttl time.Duration) time.Duration { return rounds * q.Patience(ttl) }

// Same tells whether o uses the same clients, in whatever order.
func (q *Masters) Same(o *Masters) bool {
	if len(q.all) != len(o.all) {
		return false
	}
	for _, m := range q.all {
		if !slices.ContainsFunc(o.all, func(o *member) bool { return o.Client == m.Client }) {
			return false
		}
	}
	return true
}

// answer is one of a master.
type answer struct {
	i    int
	call *redisconn.Call
}

// ask sends each master what call makes, and hands the answers to count until it has enough or all have come. Some have not
// where ctx has ended, or a node timeout is over.
func (q *Masters) ask(ctx context.Context, ttl time.Duration, call func(i int, c *redisconn.Call), count func(i int, c *redisconn.Call) (enough bool)) {
	answers := make(chan answer, len(q.all))
	for i, m := range q.all {
		c := new(redisconn.Call)
		call(i, c)
		c.Then = func(any, error) {
			q.seen(m, c)
			answers <- answer{i, c}
		}
		if !m.Responsive(q.Patience(ttl)) {
			c.Err = redisconn.Unsent{Err: redisconn.ErrSilence} // as it has been, for many before
			answers <- answer{i, c}
			continue
		}
		m.Send(context.WithoutCancel(ctx), c)
	}
	timer := q.env.Timers.Get(q.Patience(ttl))
	defer q.env.Timers.Rest(timer)
	for range q.all {
		select {
		case r := <-answers:
			if count(r.i, r.call) {
				return
			}
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// seen notes what an answer of vote.lua or tick.lua that just came tells about the server: which run of it that is, and
// what its clock said.
func (q *Masters) seen(m *member, c *redisconn.Call) {
	at, run, ok := protocol.ReadServer(c.Val)
	if c.Err != nil || !ok {
		return
	}
	now := q.env.Now()
	// The answer was made half-way between sending and now, more or less.
	m.took.Store(int64(now.Mono - c.At.Mono))
	m.offset.Store(at - (now.Wall-int64(now.Mono-c.At.Mono)/2)/int64(time.Microsecond))
	lag, was := at-c.At.Wall/int64(time.Microsecond), m.lag.Load()
	if more := lag - was; m.known.Load() && more > 0 && more <= (now.Mono-c.At.Mono).Microseconds() {
		lag = was + more/4 // this one took longer: most do not
	}
	m.lag.Store(lag)
	m.known.Store(true)
	if run == "" {
		return
	}
	m.mu.Lock()
	changed, first := m.run != run, m.run == ""
	if changed {
		if !first && q.Quarantine > 0 {
			m.suspect = now.Mono + q.Quarantine
		}
		m.run = run
	}
	m.mu.Unlock()
	if changed {
		q.findTwins()
	}
}

// suspected is until when, by our own clock, the votes of m do not count.
func (m *member) suspected() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.suspect
}

// runs is the run of each master, "" where it has not told.
func (q *Masters) runs() []string {
	runs := make([]string, len(q.all))
	for i, m := range q.all {
		m.mu.Lock()
		runs[i] = m.run
		m.mu.Unlock()
	}
	return runs
}

// findTwins looks for two clients that lead to one server.
func (q *Masters) findTwins() {
	q.twinning.Lock()
	defer q.twinning.Unlock()
	runs := q.runs()
	for i, run := range runs {
		if o := slices.Index(runs[:i], run); run != "" && o >= 0 {
			text := fmt.Sprintf("%s and %s are one server: independent masters are needed", q.all[o].name, q.all[i].name)
			q.twins.Store(&text)
			return
		}
	}
	q.twins.Store(nil)
}

// TwinsError is the error of all calls once two clients turned out to lead to one server: its votes count twice.
type TwinsError string

func (e TwinsError) Error() string { return string(e) }

func (TwinsError) Permanent() bool { return true }

// Dependent is a TwinsError, where two clients lead to one server.
func (q *Masters) Dependent() error {
	if text := q.twins.Load(); text != nil {
		return TwinsError(*text)
	}
	return nil
}

// now is the wall clock in µs as most masters have it. A client whose own clock is wrong would propose tokens that
// none of them takes.
func (q *Masters) now() int64 {
	wall := q.env.Now().Wall / int64(time.Microsecond)
	offsets := q.measured(func(m *member) int64 { return m.offset.Load() })
	if len(offsets) == 0 {
		return wall
	}
	return wall + offsets[len(offsets)/2]
}

// measured is what was measured of the masters, in order of size.
func (q *Masters) measured(of func(*member) int64) (all []int64) {
	for _, m := range q.all {
		if m.known.Load() {
			all = append(all, of(m))
		}
	}
	slices.Sort(all)
	return all
}

// proposal is the token to propose next: what the clocks of the masters will be when it gets there, and a little more.
//
// A master that knows of no token takes none that its own clock had passed when the client began to ask. So tokens rise
// also where all masters forget everything while they go on, which no quarantine covers, unless the next one is asked for
// so soon that the last one is still ahead of those clocks. That is by tokenLead, by as much as its requests got there
// sooner than the ones before, from which the client estimates, and by as much as the clocks of the masters differ.
//
// It goes by the clock that is ahead most, or that master would take no part where it knows of no token.
func (q *Masters) proposal() int64 {
	lags := q.measured(func(m *member) int64 { return m.lag.Load() })
	at := q.env.Now().Wall/int64(time.Microsecond) + tokenLead.Microseconds()
	if len(lags) == 0 {
		return at
	}
	most := lags[len(lags)/2] + tokenSpread.Microseconds()
	for lags[len(lags)-1] > most {
		lags = lags[:len(lags)-1]
	}
	return at + lags[len(lags)-1]
}

// credible tells whether most masters may take a token as large as this. One whose clock is far ahead of theirs asks
// for more.
func (q *Masters) credible(token int64) bool { return token <= q.now()+tokenAhead.Microseconds() }
