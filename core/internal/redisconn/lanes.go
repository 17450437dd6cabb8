package redisconn

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

const (
	// MinLanes is the least number of commands or pipelines that go-redis is given at a time, if the client has that
	// many connections. If the server is near, more would cost more than they bring: several commands of many callers
	// travel together, and that costs client and server one system call each instead of one for each command.
	MinLanes = 3
	// lanePace is the round-trip time for which there is one more lane. A caller that finds all lanes away waits for
	// the next one that comes back. The more lanes there are, the smaller a part of a round trip that is.
	lanePace = 60 * time.Microsecond
	// paceWindow is how long the fastest answer to a command that was alone counts as the round-trip time; it counts for
	// longer if none comes after it. The other answers had to wait for something else.
	paceWindow = time.Second
	// rateWindow is for how long answers are counted.
	rateWindow = 100 * time.Millisecond
	// laneBatch is how many commands share a pipeline: with more, the first would wait long for the last. With those
	// for whose answers nobody waits one by one there are up to bulkBatch.
	laneBatch, bulkBatch = 16, 128
	// laneStall is for how much longer than usual a lane may be away until it counts as stuck.
	laneStall = 10 * time.Millisecond
	// tightFor is how long a lane looks whether the pool has a connection before it takes anything, once it had none.
	tightFor = 10 * time.Second
	// ailsFor is how long a server counts as silent that failed to answer, if nothing more is sent to it.
	ailsFor = 5 * time.Second
	// LaneRest is for how long the goroutine of an idle lane waits for more. On a new goroutine, the stack that
	// go-redis needs has to grow several times.
	LaneRest = 100 * time.Millisecond
)

// server is one Redis server, and the queue of all that a Locker wants of it.
//
// Lanes take commands out of the queue and to the client, each lane one command, or several together, at a time. A
// command goes out at once while a lane is free. Otherwise it waits, without a goroutine, for the first lane that comes
// back. That lane takes along what has gathered by then, as one command if possible, see bundled. So no command ever
// waits for more commands to come, and a lone caller pays nothing.
//
// Nothing goes past the queue, and there are never more lanes than the client may have connections for them. So no
// command waits in the client's pool for a connection that another command of ours has, and while a command is in the
// queue, it can be taken back: then it was never sent, and there is nothing to undo. What a Redis that hangs costs are
// the callers inside, a goroutine for each lane, and little else.
type server struct {
	conn *Conn
	pool int   // how many connections the client may have
	most int   // how many lanes there may be
	home *home // the connection that one lane keeps; nil if none does

	under atomic.Int32 // calls without an answer so far
	heard atomic.Int64 // when the server last answered, or when a lane first went out after all had come back with answers
	ails  atomic.Int64 // until then a lane that goes out alone follows one that came back without an answer
	took  atomic.Int64 // how long the latest answer took
	apart atomic.Int64 // until then no bundle is sent,
	fresh atomic.Int64 // and until then none with acquires

	tight atomic.Int64 // until then lanes look whether the pool has a connection

	mu      sync.Mutex // guards what follows, and what calls, lanes and home say it guards; never held during I/O
	queues  [classes]queue
	fastest [2]time.Duration // the fastest answer in this window and in the one before
	turned  time.Duration    // when this window began
	slowest [2]time.Duration // the longest that a lane was away that came back with answers, in the same windows
	rates   [2]int           // the answers in this window of theirs, and in the one before
	rated   time.Duration    // when that window began
	busy    int              // lanes that are away, and a caller that runs its own command
	away    []*lane          // these lanes
	resting []*lane          // the lane that began to rest last is at the end

	cleaner cleaner
}

func newServer(n *Conn, o *redis.Options) *server {
	pool := o.PoolSize
	if k := o.MaxActiveConns; k > 0 { // with more, go-redis fails instead of waiting
		pool = min(pool, k)
	}
	s := &server{conn: n, pool: pool, most: max(1, pool*3/4)}
	s.cleaner.server = s
	s.cleaner.all.Start(s.cleaner.fire)
	return s
}

// idle reports whether nothing is under way.
func (s *server) idle() bool { return s.under.Load() == 0 && s.cleaner.empty() }

// queue is a list of calls, the oldest first.
type queue struct{ first, last *Call }

func (q *queue) push(c *Call) {
	c.prev, c.next, c.queued = q.last, nil, true
	if q.last = c; c.prev == nil {
		q.first = c
	} else {
		c.prev.next = c
	}
}

func (q *queue) remove(c *Call) {
	if c.prev == nil {
		q.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		q.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next, c.queued = nil, nil, false
}

// next returns the call that goes first. That is the oldest one, until it has waited for more than half as long as its
// caller listens: then there is more to do than can be done, and serving the callers in their order would serve all of
// them too late. The latest caller is the one with the most patience left.
func (q *queue) next(now time.Duration) *Call {
	if c := q.first; c != nil && c.Patience > 0 && now-c.At.Mono > c.Patience/2 {
		return q.last
	}
	return q.first
}

// push puts calls into the queue.
func (s *server) push(calls ...*Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		s.queues[c.Class].push(c)
	}
	for s.dispatch(calls[0].At) {
	}
}

// withdraw takes c out of the queue, and reports whether it was there.
func (s *server) withdraw(c *Call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.queued {
		return false
	}
	s.queues[c.Class].remove(c)
	return true
}

// dispatch sends out one more lane if one may go and finds something to take, and reports whether it did. The mutex must
// be held.
func (s *server) dispatch(now timing.Instant) bool {
	if s.queues == [classes]queue{} || !s.hasRoom(now.Mono) {
		return false
	}
	s.listen(now.Mono)
	var l *lane
	if k := len(s.resting) - 1; k >= 0 {
		l = s.resting[k]
	} else {
		l = &lane{server: s}
	}
	if !s.load(l, now, false) {
		s.home.leave(l.home)
		l.home = false
		return false
	}
	s.busy++
	s.away = append(s.away, l)
	if l.woken == nil {
		l.woken = make(chan struct{}, 1)
		go l.run()
		return true
	}
	s.resting = s.resting[:len(s.resting)-1]
	l.woken <- struct{}{}
	return true
}

// hasRoom reports whether one more lane may go out. The mutex must be held.
//
// How many there are follows from the round-trip time. But it must not follow from how busy the server is: what is sent to
// a server that has more to do than it can waits there, where nobody can take it back, for longer than its callers
// listen. So with more than MinLanes, there are no more commands under way than twice what the server answers within a
// round trip, or as many as one lane can take, as in "BBR: Congestion-Based Congestion Control" (Cardwell et al., ACM Queue 2016).
//
// A lane that is stuck does not count: its connection may be dead, or the application has used up the pool. Nor does one
// with a command that takes long by its nature.
func (s *server) hasRoom(now time.Duration) bool {
	stuck, under := s.stuck(now)
	switch busy := s.busy - stuck; {
	case s.busy >= s.most:
		return false
	case busy < MinLanes:
		return true
	default:
		rate := float64(max(s.rates[0], s.rates[1])) / float64(rateWindow)
		return busy < s.width() && float64(under) < max(laneBatch, 2*rate*float64(s.trip()))
	}
}

// stuck returns how many lanes have been away for longer than usual, and how many commands the other ones have with them.
// The mutex must be held.
func (s *server) stuck(now time.Duration) (lanes, under int) {
	usual := s.usual()
	for _, l := range s.away {
		if l.pair || now-l.at > usual {
			lanes++
		} else {
			under += l.n
		}
	}
	return lanes, under
}

// dry reports whether a lane would have to wait for a connection because the application has used up the pool. It looks
// only if that has happened a short time ago, or seems to be so. The mutex must be held.
func (s *server) dry(now time.Duration) bool {
	if s.home == nil {
		return false
	}
	if stuck, _ := s.stuck(now); stuck == 0 && now > time.Duration(s.tight.Load()) {
		return false
	}
	pool := s.home.client.PoolStats()
	if int(pool.TotalConns) < s.pool || pool.IdleConns > 0 {
		return false
	}
	s.tight.Store(int64(now + tightFor))
	return true
}

// load moves to l what goes next, and reports whether there was anything. waited says that it has been in the queue for a
// while. The mutex must be held.
//
// Renewals go first, and by the lane that has the reserved connection, unless that lane is stuck: the application may
// have used up the pool, and a lock that is held must not be lost for that.
//
// While the server is silent, each lane takes one command only, to find out whether it answers again. What was sent to
// a server that hangs has to be undone later.
func (s *server) load(l *lane, now timing.Instant, waited bool) bool {
	l.calls, l.pair = l.calls[:0], false
	if !l.home {
		l.home = s.home.take(now.Mono)
	}
	if !l.home && s.dry(now.Mono) {
		return false
	}
	silent := s.busy > 0 && s.silent(now.Mono)
	for _, class := range [...]Class{Renews, Frees, Asks} {
		if class == Renews && !l.home && s.home.serves(now.Mono) {
			continue
		}
		if class == Asks && s.pairNext(now.Mono) {
			if len(l.calls) > 0 {
				break // another lane takes it
			}
			s.loadPair(l, now, waited)
			return true
		}
		for q := &s.queues[class]; ; {
			c := q.next(now.Mono)
			if c == nil || !l.takes(c, silent) {
				break
			}
			q.remove(c)
			c.At, c.waited = now, waited
			l.calls = append(l.calls, c)
		}
	}
	if len(l.calls) == 0 {
		return false
	}
	l.at, l.n = now.Mono, len(l.calls)
	if l.home {
		s.home.moved = now.Mono
	}
	return true
}

// pairNext reports whether it is the turn of a command that takes a connection of its own, perhaps for long. One lane
// is left to all other commands. The mutex must be held.
func (s *server) pairNext(now time.Duration) bool {
	pair, ask := s.queues[pairs].first, s.queues[Asks].first
	if pair == nil || ask != nil && ask.At.Mono < pair.At.Mono {
		return false
	}
	n := 0
	for _, l := range s.away {
		if l.pair {
			n++
		}
	}
	return n < max(1, s.most-1) && !s.dry(now)
}

// loadPair moves such a command to l, which gives the reserved connection back: that is for renewals meanwhile. The
// mutex must be held.
func (s *server) loadPair(l *lane, now timing.Instant, waited bool) {
	s.home.leave(l.home)
	l.home = false
	c := s.queues[pairs].first
	s.queues[pairs].remove(c)
	c.At, c.waited = now, waited
	l.calls, l.pair, l.at, l.n = append(l.calls, c), true, now.Mono, 1
}

// takes reports whether c can travel with what l has taken already.
func (l *lane) takes(c *Call, silent bool) bool {
	n := len(l.calls)
	switch {
	case n == 0:
		return true
	case silent:
		return false
	case c.Bulk:
		return n < bulkBatch
	}
	return n < laneBatch
}

// usual returns how long an answer may take without a sign that something hangs. The mutex must be held.
func (s *server) usual() time.Duration { return 2 * (laneStall + max(s.slowest[0], s.slowest[1])) }

// silent reports whether the server has not answered for longer than usual. The mutex must be held.
func (s *server) silent(now time.Duration) bool {
	return now-time.Duration(s.heard.Load()) > s.usual()
}

// listen notes that something is sent at now. Before, there was nothing to hear, unless a failure was the last thing that
// happened: then the silence goes on. The mutex must be held.
func (s *server) listen(now time.Duration) {
	if s.busy == 0 && now >= time.Duration(s.ails.Load()) {
		s.heard.Store(int64(now))
	}
}

// Silence returns for how long the server that has key has not answered what it was sent, or 0 if there is nothing to
// answer. What takes long by its nature does not count, nor what waits for a connection because the application has used up
// the pool.
func (n *Conn) Silence(key string) time.Duration {
	s := n.only
	if n.Many() {
		s = n.serverOf(&Call{Args: []any{nil, nil, nil, key}})
	}
	under := int(s.under.Load())
	if under == 0 {
		return 0
	}
	d := n.Env.Now().Mono - time.Duration(s.heard.Load())
	if d < laneStall {
		return d
	}
	s.mu.Lock()
	for _, l := range s.away {
		if l.pair {
			under--
		}
	}
	s.mu.Unlock()
	if under <= 0 {
		return 0
	}
	if !n.Many() {
		if pool := n.Client.PoolStats(); int(pool.TotalConns) >= s.pool && pool.IdleConns == 0 {
			return 0
		}
	}
	return d
}

// trip returns the round-trip time, 0 if it is not known. The mutex must be held.
func (s *server) trip() time.Duration {
	trip := s.fastest[0]
	if last := s.fastest[1]; trip == 0 || last > 0 && last < trip {
		return last
	}
	return trip
}

// width returns how many lanes there may be now. The mutex must be held.
func (s *server) width() int { return MinLanes + int(s.trip()/lanePace) }

// counted notes that a lane came back at now with the answers to n commands, after it was away for d. The mutex must be
// held.
func (s *server) counted(n int, d, now time.Duration) {
	s.turn(now)
	s.slowest[0] = max(s.slowest[0], d)
	if past := now - s.rated; past > rateWindow {
		s.rates[1] = s.rates[0]
		if past > 2*rateWindow {
			s.rates[1] = 0
		}
		s.rates[0], s.rated = 0, now
	}
	s.rates[0] += n
}

// measured notes that an answer to a command that was alone took d and came at now. The mutex must be held.
func (s *server) measured(d, now time.Duration) {
	s.turn(now)
	if s.fastest[0] == 0 || d < s.fastest[0] {
		s.fastest[0] = max(d, 1)
	}
}

// turn begins a new window if it is time. The mutex must be held.
func (s *server) turn(now time.Duration) {
	if now-s.turned <= paceWindow {
		return
	}
	s.turned = now
	if s.fastest[0] > 0 {
		s.fastest = [2]time.Duration{0, s.fastest[0]}
	}
	s.slowest = [2]time.Duration{0, s.slowest[0]}
}

// answer sets the result of a call.
func (s *server) answer(c *Call, val any, err error) {
	s.under.Add(-1)
	if err == nil || ReplyText(err) != "" {
		if n := s.conn; !n.known.Load() {
			n.known.Store(true)
		}
		now := s.conn.Env.Now().Mono
		s.heard.Store(int64(now))
		if c.run == nil {
			s.took.Store(max(1, int64(now-c.At.Mono)))
		}
		if s.ails.Load() != 0 {
			s.ails.Store(0)
		}
	} else if _, unsent := err.(Unsent); !unsent && !errors.Is(err, redis.ErrPoolTimeout) {
		s.ails.Store(int64(s.conn.Env.Now().Mono + ailsFor))
	}
	if err != nil && errors.Is(err, redis.ErrPoolTimeout) {
		s.tight.Store(int64(s.conn.Env.Now().Mono + tightFor))
	}
	c.Answer(val, err)
	s.conn.Env.Gate.Leave()
}

// lane is the goroutine of one lane.
type lane struct {
	server *server
	woken  chan struct{} // capacity 1: signalled when a resting lane has something to take again
	calls  []*Call       // what it takes
	home   bool          // it has the reserved connection

	// Guarded by the server's mutex.
	at   time.Duration // when it last went out
	n    int           // with how many commands
	pair bool          // one that takes a connection of its own
}

func (l *lane) run() {
	timers := &l.server.conn.Env.Timers
	timer := timers.Get(LaneRest)
	defer timers.Rest(timer)
	for {
		l.work()
		if !l.rest(timer) {
			return
		}
	}
}

// work takes commands away for as long as there are any.
func (l *lane) work() {
	s := l.server
	for {
		at := l.calls[0].At.Mono
		alone := s.alone()
		l.send()
		clear(l.calls)
		now := s.conn.Env.Now()
		s.mu.Lock()
		if time.Duration(s.heard.Load()) > at && !l.pair {
			s.counted(l.n, now.Mono-at, now.Mono)
			if alone && l.n == 1 {
				s.measured(now.Mono-at, now.Mono)
			}
		}
		s.busy--
		i := slices.Index(s.away, l)
		s.away = slices.Delete(s.away, i, i+1)
		goesOn := s.hasRoom(now.Mono) && s.load(l, now, true)
		if goesOn {
			s.busy++
			s.away = append(s.away, l)
		} else {
			s.home.leave(l.home)
			l.home = false
			s.resting = append(s.resting, l)
			if s.queues[Renews].first != nil {
				s.dispatch(now) // they wait for the reserved connection, which is free now
			}
		}
		s.mu.Unlock()
		if !goesOn {
			return
		}
	}
}

// alone reports whether only one command is under way.
func (s *server) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy == 1
}

// rest waits for a while, and reports whether there is something to take again. A resting lane does not count as under
// way: Shutdown ends the rest, and does not wait for it.
func (l *lane) rest(timer *time.Timer) bool {
	s := l.server
	timer.Reset(LaneRest)
	select {
	case <-l.woken:
		return true
	case <-timer.C:
	case <-s.conn.Env.Gate.Closing:
	}
	s.mu.Lock()
	if i := slices.Index(s.resting, l); i >= 0 {
		s.resting = slices.Delete(s.resting, i, i+1)
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	<-l.woken // something was there already
	return true
}

// send sends what the lane took. If it is several calls, the common ones go in a bundle and the others in a pipeline.
func (l *lane) send() {
	s := l.server
	calls := slices.DeleteFunc(l.calls, s.drop)
	if len(calls) == 0 {
		return
	}
	if len(calls) > 1 && !s.conn.Many() {
		calls = l.bundled(calls)
	}
	switch len(calls) {
	case 0:
	case 1:
		// Not a pipeline: newer versions of go-redis have separate connections for those, and the first would have to
		// dial one.
		val, err := s.conn.one(l.driver(), calls[0])
		l.answer(calls[0], val, err)
	default:
		s.conn.several(l.driver(), calls, l.answer)
	}
}

func (l *lane) driver() driver {
	if l.home {
		return l.server.home.driver(l.server.conn.Env.Now().Mono)
	}
	return l.server.conn.Client
}

func (l *lane) answer(c *Call, val any, err error) {
	if l.home {
		l.server.home.judge(err)
	}
	l.server.answer(c, val, err)
}

// drop answers a call whose caller went while it was in the queue, and reports whether it did. An acquire that is sent late
// could outlast its tombstone.
func (s *server) drop(c *Call) bool {
	if c.Lasting || !c.waited {
		return false
	}
	err := c.Ctx.Err()
	if err != nil {
		s.answer(c, nil, Unsent{Err: err})
	}
	return err != nil
}
