package core

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/redis/go-redis/v9"
)

const (
	defaultQuarantine = 30 * time.Second
	maxQuarantine     = 2 * maxTTL

	maxNodes = 15 // each attempt asks all of them

	minNodeTimeout = 50 * time.Millisecond
	maxNodeTimeout = time.Second

	// tokenBehind and tokenAhead are how far a proposed token may be from the clock of a master, which is as much as
	// the clocks of most masters may differ. See vote.lua.
	tokenBehind = 2 * time.Second
	tokenAhead  = 2 * time.Second

	// tokenLead is by how much a proposed token is ahead of the clocks of the masters when it gets there, as far as can
	// be told: enough for requests to take longer than the one before. tokenSpread is how far the clock of a master may be
	// ahead of most, and its requests take longer, for it to be counted in.
	tokenLead   = 10 * time.Millisecond
	tokenSpread = time.Second
)

// NewRedLock makes a Locker on independent Redis (or Valkey) masters: a lock is held by whoever has it on most of
// them, so that it outlives the loss of the others. Three or five are usual. An even number works and bears no more
// failures than one less: four masters need three, and bear the loss of one, as three do. They must share nothing:
// no replication among them, no proxy in front that may lead two of the clients to one server.
//
// The Locker is used like that of [New]; see "RedLock" in the package's description for what is promised, and for
// what differs: [WithReentryID] and [WithReplicaAcks] are refused, those who wait are served first come, first served
// as far as the masters agree on who came first, and a master that has just started does not vote for a while, see
// [WithQuarantine]. It sends nothing yet. The clients stay the caller's, as with New.
//
// It returns an [ErrInvalid] for no clients, more than 15 or nil ones, for two clients with one address or a client of
// Sentinel, and for options that cannot work. That two clients lead to one server by different addresses comes to
// light when they are first asked: then calls fail with an ErrInvalid.
func NewRedLock(clients []*redis.Client, opts ...Option) (*Locker, error) {
	if len(clients) == 0 || len(clients) > maxNodes {
		return nil, invalid("NewRedLock with %d clients: want 1 to %d", len(clients), maxNodes)
	}
	for i, c := range clients {
		if c == nil {
			return nil, invalid("NewRedLock: client %d is nil", i)
		}
		if c.Options().Addr == sentinelAddr {
			return nil, invalid("NewRedLock: client %d is one of Sentinel: a failover forgets locks, which a quorum of independent masters must not", i)
		}
		for j, o := range clients[:i] {
			if o == c || plainDialer(o) && plainDialer(c) && o.Options().Addr == c.Options().Addr && o.Options().Network == c.Options().Network {
				return nil, invalid("NewRedLock: clients %d and %d are for one server, %s", j, i, c.Options().Addr)
			}
		}
	}
	return newLocker(opts, func(l *Locker) servers {
		q := &quorum{
			locker: l, need: len(clients)/2 + 1, channel: inboxName(l.cfg.prefix), nodeTimeout: l.cfg.nodeTimeout,
			waiters: map[string]*ballot{}, news: make(chan struct{}), quarantine: defaultQuarantine,
		}
		if l.cfg.quarantineSet {
			q.quarantine = l.cfg.quarantine
		}
		for i, c := range clients {
			n := l.newNode(c, q.channel)
			n.votes, n.name = true, c.Options().Addr
			n.inbox.relay = func(id string, names protocol.Names) { q.nudged(i, id, names) }
			n.inbox.turned = q.turned
			q.nodes = append(q.nodes, &member{node: n})
		}
		return q
	})
}

// sentinelAddr is what go-redis calls the address of a client that asks Sentinel for it.
const sentinelAddr = "FailoverClient"

// plainDialer tells a dialer of go-redis from one of the user's, which may lead anywhere, whatever the address says. By
// its name: go-redis' own is compiled into each of its callers, so that two of them are not the same code.
func plainDialer(c *redis.Client) bool {
	f := runtime.FuncForPC(reflect.ValueOf(c.Options().Dialer).Pointer())
	return f != nil && strings.HasPrefix(f.Name(), reflect.TypeFor[redis.Client]().PkgPath()+".")
}

// WithQuarantine sets for how long a master does not vote after its start: it may have forgotten a lock that is held.
// It is a constant of the deployment and must be the same for all Lockers of these masters: as long as the longest
// lease that any of them asks for, and 4 s, 1 s and a hundredth more for clocks that differ. A call that asks for a
// longer lease than it covers is refused. Default 30 s; at most 48 h. 0 turns it off, for masters that lose nothing
// (appendfsync always) and for tests: then the crash of a master can let a second holder in.
//
// A master's age is its INFO server, which its ACL must allow (+info): one that does not tell does not vote. When all
// masters start anew, no lock can be had for that time; the error holds a [*QuarantineError].
func WithQuarantine(d time.Duration) Option {
	return option(func(c *config) error {
		if d < 0 || d > maxQuarantine || d > 0 && covered(d) < minTTL {
			return invalid("WithQuarantine(%v): want 0, or enough for a lease of %v, at most %v", d, minTTL, maxQuarantine)
		}
		c.quarantine, c.quarantineSet = d.Truncate(time.Millisecond), true
		return nil
	})
}

// WithNodeTimeout sets how long one of several masters is waited for while too few of the others have answered. Default: a tenth of
// the TTL, but at least 50 ms and at most 1 s. It is to be longer than a dial and a round trip, and shorter than
// half a TTL, which is checked. Only for [NewRedLock].
func WithNodeTimeout(d time.Duration) Option {
	return option(func(c *config) error {
		if d < time.Millisecond {
			return invalid("WithNodeTimeout(%v): want at least 1ms", d)
		}
		c.nodeTimeout = d
		return nil
	})
}

// covered is the longest lease that a quarantine of d covers: beside the lease, the bounds on tokens have to pass, see
// vote.lua, and clocks run apart.
func covered(d time.Duration) time.Duration {
	return (d - tokenBehind - tokenAhead - time.Second) * 100 / 101
}

// quorum is several independent masters, of which most have to agree.
type quorum struct {
	locker      *Locker
	nodes       []*member
	need        int // a majority
	quarantine  time.Duration
	nodeTimeout time.Duration // 0: by the TTL
	channel     string        // of all inboxes
	twins       atomic.Pointer[string]
	twinning    sync.Mutex // one search for twins at a time, or one that saw less could have the last word

	mu      sync.Mutex // guards what follows
	waiters map[string]*ballot
	up      bool // most inboxes are
	news    chan struct{}
}

// member is one of them.
type member struct {
	*node
	offset atomic.Int64 // its clock minus ours, in µs
	lag    atomic.Int64 // its clock when a request gets there minus ours when it is sent, in µs
	known  atomic.Bool  // both were measured
	took   atomic.Int64 // the latest answer to a look, from its sending on

	mu      sync.Mutex
	run     string        // the id of its run
	suspect time.Duration // until then, by our own clock, it does not count: it started anew while we knew it
}

// seen notes what an answer of vote.lua or tick.lua that just came tells about the server: which run of it that is, and
// what its clock said.
func (q *quorum) seen(m *member, c *redisconn.Call) {
	at, run, ok := protocol.ReadServer(c.Val)
	if c.Err != nil || !ok {
		return
	}
	now := q.locker.clock.Now()
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

// suspected is until when, by our own clock, the votes of m do not count.
func (m *member) suspected() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.suspect
}

// findTwins looks for two clients that lead to one server.
func (q *quorum) findTwins() {
	q.twinning.Lock()
	defer q.twinning.Unlock()
	by := map[string]*member{}
	for _, m := range q.nodes {
		m.mu.Lock()
		run := m.run
		m.mu.Unlock()
		if run == "" {
			continue
		}
		if o := by[run]; o != nil {
			text := fmt.Sprintf("%s and %s are one server", o.name, m.name)
			q.twins.Store(&text)
			return
		}
		by[run] = m
	}
	q.twins.Store(nil)
}

// dependent is the error of all calls once two clients turned out to lead to one server: its votes count twice.
func (q *quorum) dependent() error {
	if text := q.twins.Load(); text != nil {
		return invalid("%s: independent masters are needed", *text)
	}
	return nil
}

// now is the wall clock in µs as most masters have it. A client whose own clock is wrong would propose tokens that
// none of them takes.
func (q *quorum) now() int64 {
	var offsets []int64
	for _, m := range q.nodes {
		if m.known.Load() {
			offsets = append(offsets, m.offset.Load())
		}
	}
	wall := q.locker.clock.Now().Wall / int64(time.Microsecond)
	if len(offsets) == 0 {
		return wall
	}
	slices.Sort(offsets)
	return wall + offsets[len(offsets)/2]
}

// proposal is the token to propose next: what the clocks of the masters will be when it gets there, and a little more.
//
// A master that knows of no token takes none that its own clock had passed when the client began to ask. So tokens rise
// also where all masters forget everything while they go on, which no quarantine covers, unless the next one is asked for
// so soon that the last one is still ahead of those clocks. That is by tokenLead, by as much as its requests got there
// sooner than the ones before, from which the client estimates, and by as much as the clocks of the masters differ.
//
// It goes by the clock that is ahead most, or that master would take no part where it knows of no token.
func (q *quorum) proposal() int64 {
	var lags []int64
	for _, m := range q.nodes {
		if m.known.Load() {
			lags = append(lags, m.lag.Load())
		}
	}
	at := q.locker.clock.Now().Wall/int64(time.Microsecond) + tokenLead.Microseconds()
	if len(lags) == 0 {
		return at
	}
	slices.Sort(lags)
	most := lags[len(lags)/2] + tokenSpread.Microseconds()
	for lags[len(lags)-1] > most {
		lags = lags[:len(lags)-1]
	}
	return at + lags[len(lags)-1]
}

// credible tells whether most masters may take a token as large as this. One whose clock is far ahead of theirs asks
// for more.
func (q *quorum) credible(token int64) bool { return token <= q.now()+tokenAhead.Microseconds() }

// allKnown tells whether every master has told which run it is in.
func (q *quorum) allKnown() bool {
	for _, m := range q.nodes {
		m.mu.Lock()
		known := m.run != ""
		m.mu.Unlock()
		if !known {
			return false
		}
	}
	return true
}

// patience is the node timeout.
func (q *quorum) patience(ttl time.Duration) time.Duration {
	if q.nodeTimeout > 0 {
		return q.nodeTimeout
	}
	return min(max(ttl/10, minNodeTimeout), maxNodeTimeout)
}

func (q *quorum) allowance(ttl time.Duration) time.Duration {
	return (claimRounds + 2) * q.patience(ttl)
}

func (q *quorum) Many() bool { return true }

// same tells whether o uses the same clients, in whatever order.
func (q *quorum) same(o servers) bool {
	other, ok := o.(*quorum)
	if !ok || len(q.nodes) != len(other.nodes) {
		return false
	}
	for _, m := range q.nodes {
		if !slices.ContainsFunc(other.nodes, func(o *member) bool { return o.Client == m.Client }) {
			return false
		}
	}
	return true
}

func (q *quorum) check(c *config) error {
	switch {
	case c.acks > 0:
		return invalid("WithReplicaAcks is for one master with replicas: a quorum has none that count")
	case c.reentryID != "":
		return invalid("WithReentryID needs one Redis: calls that come from elsewhere cannot be let in by a quorum")
	case c.nodeTimeout > c.ttl/2:
		return invalid("WithNodeTimeout(%v) leaves too little of a lease of %v", c.nodeTimeout, c.ttl)
	}
	return q.covers(c.ttl)
}

// covers refuses a lease that may outlast the quarantine.
func (q *quorum) covers(lease time.Duration) error {
	if d := q.quarantine; d > 0 && lease > covered(d) {
		return invalid("a lease of %v is longer than WithQuarantine(%v) covers, which is %v", lease, d, covered(d).Truncate(time.Millisecond))
	}
	return nil
}

func (q *quorum) own(names protocol.Names, cfg *config, block int) ownership {
	b := &ballot{q: q}
	names.Gone = "" // each attempt has an owner id of its own
	b.stake = stake{cfg: cfg, block: block, names: names}
	return b
}
