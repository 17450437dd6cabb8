package redlock

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
	// tokenBehind and tokenAhead are how far a proposed token may be behind and ahead of the clock of a master. That is
	// also how much the clocks of most masters may differ. See vote.lua.
	tokenBehind = 2 * time.Second
	tokenAhead  = 2 * time.Second

	// tokenLead is how far a proposed token should be ahead of the clocks of the masters when it gets there, which can
	// only be estimated. It leaves room for requests that take longer than the one before. tokenSpread bounds the
	// masters that proposal takes into account: those whose clock is ahead of most, or whose requests take longer, by
	// no more than that.
	tokenLead   = 10 * time.Millisecond
	tokenSpread = time.Second

	minPatience = 50 * time.Millisecond
	maxPatience = time.Second
	// rounds is how many node timeouts a call may take, because clients that ask at once get in each other's way.
	rounds = 5
)

// config says how to use the masters.
type config struct {
	quarantine  time.Duration // how long after its start a master does not vote; 0: it votes at once
	nodeTimeout time.Duration // 0: derived from the TTL
	inbox       string        // the channel on which masters report that a lock is free
	report      func(key string, err error)
}

// covered returns the longest lease that a quarantine of d covers. The quarantine must outlast the lease, the bounds on
// tokens (see vote.lua), and clocks that run apart.
func covered(d time.Duration) time.Duration {
	return (d - tokenBehind - tokenAhead - time.Second) * 100 / 101
}

// masters are the masters of one Locker, and what the Locker knows about them.
type masters struct {
	config
	env      *timing.Env
	seal     protocol.Seal
	all      []*member
	need     int // a majority
	twins    atomic.Pointer[error]
	twinning sync.Mutex // one search for twins at a time: a search that saw less must not have the last word

	mu      sync.Mutex // guards what follows
	waiters map[string]*owner
	up      bool // most inboxes are up
	news    chan struct{}
}

// member is one master.
type member struct {
	*redisconn.Conn
	name     string // its address
	inbox    *single.Inbox
	reported atomic.Int64 // when a failing renewal was last reported

	offset atomic.Int64 // its clock minus ours, in µs
	lag    atomic.Int64 // its clock when a request gets there, minus ours when the request is sent, in µs
	known  atomic.Bool  // both were measured
	took   atomic.Int64 // how long its latest answer took

	mu      sync.Mutex
	run     string        // the id of the server's run
	suspect time.Duration // until then, by our own clock, its votes do not count: it started anew while we knew it
}

func newMasters(clients []*redis.Client, env *timing.Env, c config) *masters {
	q := &masters{config: c, env: env, seal: protocol.NewSeal(), need: len(clients)/2 + 1, waiters: map[string]*owner{}, news: make(chan struct{})}
	for i, client := range clients {
		m := &member{Conn: redisconn.New(client, env), name: client.Options().Addr}
		m.inbox = single.NewInbox(m.Conn, c.inbox, q.seal.Expects, func(g protocol.Grant) bool { return q.nudged(i, g) })
		reported := false
		m.inbox.Failed = func(err error, was bool) {
			if was || !reported { // once for each outage: the other masters go on
				reported = true
				q.report("", fmt.Errorf("holdfast: %s cannot notify waiters, because SUBSCRIBE failed: %w", m.name, err))
			}
		}
		m.inbox.Dropped = func(err error) { q.report("", fmt.Errorf("holdfast: %s: %w", m.name, err)) }
		m.inbox.Turned = q.turned
		q.all = append(q.all, m)
	}
	return q
}

// report decides whether to report a renewal that fails at now: once in a while for all locks, so as not to drown the
// rest.
func (m *member) report(now, while time.Duration) bool {
	last := m.reported.Load()
	return (last == 0 || int64(now)-last >= int64(while)) && m.reported.CompareAndSwap(last, int64(now))
}

// Patience is how long to wait for one master while too few of the others have answered, and how long all that one call
// needs may take.
func (q *masters) Patience(ttl time.Duration) (answer, call time.Duration) {
	d := q.patience(ttl)
	return d, rounds * d
}

func (q *masters) patience(ttl time.Duration) time.Duration {
	if q.nodeTimeout > 0 {
		return q.nodeTimeout
	}
	return min(max(ttl/10, minPatience), maxPatience)
}

// Clients returns the clients of all masters.
func (q *masters) Clients() (all []redis.UniversalClient) {
	for _, m := range q.all {
		all = append(all, m.Client)
	}
	return all
}

// answer is the answer of one master.
type answer struct {
	i    int
	call *redisconn.Call
}

// ask sends each master what call makes, and passes the answers to count. It returns when count has enough, when all
// answers have come, when ctx has ended, or after a node timeout. What was not sent by then is not sent any more, and
// dropped is told.
func (q *masters) ask(ctx context.Context, ttl time.Duration, call func(i int, c *redisconn.Call), count func(i int, c *redisconn.Call) (enough bool), dropped func(i int)) {
	answers := make(chan answer, len(q.all))
	calls := make([]*redisconn.Call, len(q.all))
	defer func() {
		for i, c := range calls {
			if c != nil && c.Leave() && dropped != nil {
				dropped(i)
			}
		}
	}()
	for i, m := range q.all {
		c := new(redisconn.Call)
		call(i, c)
		c.Then = func(c *redisconn.Call) {
			q.observe(m, c)
			answers <- answer{i, c}
		}
		if !m.Responsive(q.patience(ttl)) {
			c.Err = redisconn.Unsent{Err: redisconn.ErrSilence} // it has not answered many commands before
			answers <- answer{i, c}
			continue
		}
		calls[i], c.Lasting, c.Patience = c, true, q.patience(ttl)
		m.Send(ctx, c)
	}
	timer := q.env.Timers.Get(q.patience(ttl))
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

// observe notes what a new answer of vote.lua or tick.lua says about the server: which run of the server it is, and its
// clock.
func (q *masters) observe(m *member, c *redisconn.Call) {
	at, run, ok := protocol.ReadServer(c.Val)
	if c.Err != nil || !ok {
		return
	}
	now := q.env.Now()
	// The answer was made about half-way between sending and now.
	m.took.Store(int64(now.Mono - c.At.Mono))
	m.offset.Store(at - (now.Wall-int64(now.Mono-c.At.Mono)/2)/int64(time.Microsecond))
	lag, was := at-c.At.Wall/int64(time.Microsecond), m.lag.Load()
	if more := lag - was; m.known.Load() && more > 0 && more <= (now.Mono-c.At.Mono).Microseconds() {
		lag = was + more/4 // this request took longer, which most do not
	}
	m.lag.Store(lag)
	m.known.Store(true)
	if run == "" {
		return
	}
	m.mu.Lock()
	changed, first := m.run != run, m.run == ""
	if changed {
		if !first && q.quarantine > 0 {
			m.suspect = now.Mono + q.quarantine
		}
		m.run = run
	}
	m.mu.Unlock()
	if changed {
		q.findTwins()
	}
}

// suspected returns until when, by our own clock, the votes of m do not count.
func (m *member) suspected() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.suspect
}

// runs returns the run of each master, "" if it is not known.
func (q *masters) runs() []string {
	runs := make([]string, len(q.all))
	for i, m := range q.all {
		m.mu.Lock()
		runs[i] = m.run
		m.mu.Unlock()
	}
	return runs
}

// findTwins looks for two clients that lead to one server.
func (q *masters) findTwins() {
	q.twinning.Lock()
	defer q.twinning.Unlock()
	runs := q.runs()
	for i, run := range runs {
		if o := slices.Index(runs[:i], run); run != "" && o >= 0 {
			twins := invalid("%s and %s are the same server: want independent masters", q.all[o].name, q.all[i].name)
			q.twins.Store(&twins)
			return
		}
	}
	q.twins.Store(nil)
}

// dependent returns an error if two clients lead to one server, whose votes would count twice. All calls fail with it.
func (q *masters) dependent() error {
	if twins := q.twins.Load(); twins != nil {
		return *twins
	}
	return nil
}

// now returns the wall clock of most masters, in µs. A client that went by its own clock would propose tokens that no
// master takes if that clock is wrong.
func (q *masters) now() int64 {
	wall := q.env.Now().Wall / int64(time.Microsecond)
	offsets := q.measured(func(m *member) int64 { return m.offset.Load() })
	if len(offsets) == 0 {
		return wall
	}
	return wall + offsets[len(offsets)/2]
}

// measured returns what was measured of each master, in ascending order.
func (q *masters) measured(of func(*member) int64) (all []int64) {
	for _, m := range q.all {
		if m.known.Load() {
			all = append(all, of(m))
		}
	}
	slices.Sort(all)
	return all
}

// proposal returns the token to propose next: what the clocks of the masters will show when it gets there, and a little
// more.
//
// A master that knows of no token takes none that its own clock had passed when the client began to ask. So tokens rise
// even if all masters forget everything while they go on running, which no quarantine covers. The exception is a token
// that is asked for so soon that the token before is still ahead of those clocks. That token is ahead by tokenLead, by
// as much as its requests got there sooner than the earlier ones that the client estimates from, and by as much as the
// clocks of the masters differ.
//
// The proposal goes by the clock that is furthest ahead. Otherwise the master with that clock would take no part while
// it knows of no token.
func (q *masters) proposal() int64 {
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

// credible reports whether most masters can take a token as large as this. A master whose clock is far ahead of theirs
// asks for larger ones.
func (q *masters) credible(token int64) bool { return token <= q.now()+tokenAhead.Microseconds() }
