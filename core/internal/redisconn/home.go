package redisconn

import (
	"context"
	"errors"
	"math"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// homeLeast is how many connections a client must have for a Locker to reserve one of them.
	homeLeast = 4
	// homeRest is for how long the reserved connection is kept without a use while no lock is held.
	homeRest = time.Second
	// homeIdle is for how long it is used again without a look at whether it is alive.
	homeIdle = 30 * time.Second
	// homeTurn is how often it goes through the pool if no lock is held. From 5 s after that on, go-redis looks for
	// notifications before and after each command, which costs two system calls.
	homeTurn = 4 * time.Second

	// homeLook is how often callers find out whether the application has used up the pool.
	homeLook = 20 * time.Millisecond

	// inlineFor is how long a command may take on its caller's goroutine. It is the longest that a caller whose context
	// is cancelled waits when the server does not answer.
	inlineFor = 250 * time.Millisecond
	// inlineBelow is how long the latest answer may have taken for the next command to run on its caller's goroutine.
	// It is far less than inlineFor, which a link that is usually slow would exceed.
	inlineBelow = 50 * time.Millisecond
	// inlinePause is how long no command runs on its caller's goroutine after one was not answered in time, which costs
	// the command its connection.
	inlinePause = 10 * time.Second
)

// home is a connection that is kept out of the client's pool while locks are held or commands are sent. An application
// that has used up the pool, for example with blocking commands, cannot keep renewals from it. It also is the connection
// on which callers run commands themselves.
//
// A caller can run a command only if the connection observes the deadline of a context: otherwise the caller would not
// return in time if the server hangs. Without ContextTimeoutEnabled, the connection therefore comes from a clone of the
// client with the same pool, which has that option. go-redis gives no hooks to a clone, so a client with hooks, which
// must see all commands, has none. Lanes give a context without a deadline, so that the client's own timeouts hold.
type home struct {
	server *server
	client *redis.Client
	life   time.Duration // the client's ConnMaxLifetime; 0 for any
	slow   atomic.Int64  // until then no caller runs a command itself

	// Guarded by the server's mutex.
	taken  bool
	moved  time.Duration // when it last went out
	ready  bool          // it is there, and worked
	over   bool
	timer  *time.Timer
	tight  bool          // the pool was crowded when it was last looked at
	looked time.Duration // when that was; 0 for never

	// Of the one that has taken it, or else guarded by the server's mutex.
	conn   *redis.Conn   // nil while there is none
	made   time.Duration // when
	turned time.Duration // when it last went through the pool
	used   time.Duration // when it last went out
	ill    bool          // a command failed, or left it in doubt
	good   bool          // a command was answered
	prompt bool          // it observes deadlines
}

// newHome returns nil for a client that no connection should be taken from, or whose connections know no deadlines. That
// is what timeouts of -2 are for; the options have them as -1 by now.
func newHome(s *server, client *redis.Client) *home {
	o := client.Options()
	if s.pool < homeLeast || o.ReadTimeout < 0 || o.WriteTimeout < 0 || o.StreamingCredentialsProvider != nil {
		return nil
	}
	return &home{server: s, client: client, life: o.ConnMaxLifetime}
}

// connect returns a connection, which is taken from the pool by its first command. It has the hooks that the client has
// now. It returns nil if there must be none.
func (h *home) connect() *redis.Conn {
	o, clone := h.client.Options(), h.client.WithTimeout(0)
	own := clone.Options()
	if !hooked(h.client) {
		own.ContextTimeoutEnabled, own.ReadTimeout, own.WriteTimeout, h.prompt = true, o.ReadTimeout, o.WriteTimeout, true
		return clone.Conn()
	}
	// A connection of the client itself has the client's options. While go-redis finds out whether the server sends
	// notifications, it notes that there, for each connection under a lock of its own.
	if m := own.MaintNotificationsConfig; m != nil && m.Mode != maintnotifications.ModeDisabled {
		return nil
	}
	h.prompt = o.ContextTimeoutEnabled
	return h.client.Conn()
}

// hooked reports whether client has hooks, or may have some: go-redis does not tell.
func hooked(client *redis.Client) bool {
	hooks := reflect.ValueOf(client)
	for _, name := range [...]string{"baseClient", "hooksMixin", "slice"} {
		if hooks = reflect.Indirect(hooks); hooks.Kind() != reflect.Struct {
			return true
		}
		hooks = hooks.FieldByName(name)
	}
	return hooks.Kind() != reflect.Slice || hooks.Len() > 0
}

// take reports whether h was free; then it no longer is. The server's mutex must be held.
func (h *home) take(now time.Duration) bool {
	if h == nil || h.taken || h.over {
		return false
	}
	h.taken, h.moved = true, now
	return true
}

// serves reports whether another lane has h and is likely to come back soon. The server's mutex must be held.
func (h *home) serves(now time.Duration) bool {
	return h != nil && h.taken && now-h.moved <= min(h.server.usual(), 5*laneStall)
}

// leave gives h back, if it was taken. The server's mutex must be held.
func (h *home) leave(taken bool) {
	if !taken {
		return
	}
	h.taken, h.ready = false, h.conn != nil && h.good && !h.ill && h.prompt
	if h.conn != nil && h.timer == nil {
		h.timer = time.AfterFunc(homeRest, h.settle)
	}
	if h.over && h.conn != nil {
		h.drop()
	}
}

// driver returns the connection, for the one that has taken it, at now. If half of the pool is in use, or a quarter
// reserved by other Lockers, it returns the client.
func (h *home) driver(now time.Duration) driver {
	if h.conn != nil && (h.ill || h.due(now) && !h.crowded()) {
		if h.drop(); !h.ill { // to the pool, which looks at it before it gives it out again
			h.turned = max(now, 1)
		}
	}
	if h.conn == nil {
		if h.crowded() || !reservations.add(h.client, h.server.pool/4) {
			return h.client
		}
		if h.conn, h.made, h.ill, h.good = h.connect(), now, false, false; h.conn == nil {
			reservations.end(h.client)
			return h.client
		}
	}
	h.used = now
	return h.conn
}

// due reports whether the connection is to go through the pool, which may find it too old, or dead.
func (h *home) due(now time.Duration) bool {
	free := h.server.conn.Env.Held.Load() == 0
	return now-h.used > homeIdle || h.life > 0 && now-h.made > h.life || free && h.good && (h.turned == 0 || now-h.turned > homeTurn)
}

// crowded reports whether half of the pool is in use. Then the connection stays: it might not come back.
func (h *home) crowded() bool {
	pool := h.client.PoolStats()
	return int(pool.TotalConns-pool.IdleConns) >= h.server.pool/2
}

func (h *home) drop() {
	_ = h.conn.Close() // sends nothing
	h.conn = nil
	reservations.end(h.client)
}

// reservations are those of all Lockers. However many share a client, most of its connections are for everybody.
var reservations = counts{of: map[*redis.Client]int{}}

type counts struct {
	mu sync.Mutex // guards of
	of map[*redis.Client]int
}

// add counts one more for client, unless there are as many as there may be.
func (r *counts) add(client *redis.Client, most int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[client] >= most {
		return false
	}
	r.of[client]++
	return true
}

func (r *counts) end(client *redis.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[client]--; r.of[client] == 0 {
		delete(r.of, client)
	}
}

// judge looks at what became of a command on h, or of one for which h had no connection. go-redis uses a connection no more
// after anything but a reply, and after some replies.
func (h *home) judge(err error) {
	if err == nil {
		h.good = true
	} else if text := ReplyText(err); text == "" || fleetingReply(text) {
		h.ill = true
	}
}

// settle gives the connection back to the pool if it is not used any more.
func (h *home) settle() {
	s := h.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := s.conn.Env.Now().Mono; {
	case h.over || !h.taken && h.conn == nil:
		h.timer = nil
	case h.taken, now-h.used < homeRest, s.conn.Env.Held.Load() > 0:
		h.timer.Reset(homeRest)
	default:
		h.timer, h.ready = nil, false
		h.drop()
	}
}

// close gives the connection back for good.
func (h *home) close() {
	if h == nil {
		return
	}
	s := h.server
	s.mu.Lock()
	defer s.mu.Unlock()
	h.over, h.ready = true, false
	if h.timer != nil {
		h.timer.Stop()
	}
	if !h.taken && h.conn != nil {
		h.drop()
	}
}

// Do is Send for a caller that has nothing else to do and can wait for up to patience. While no other command is under
// way it runs c on the caller's goroutine, and c is answered when Do returns. That saves the two hops to a lane and
// back, most of what a command costs a lone caller. go-redis observes a deadline, but never a cancellation, hence
// inlineFor.
func (n *Conn) Do(ctx context.Context, c *Call, patience time.Duration) *Call {
	s := n.only
	c.Patience = patience
	if patience < inlineFor || !s.home.may(ctx) || !s.enter() {
		return n.Send(ctx, c)
	}
	n.depart(ctx, c, s)
	c.within.end = time.Now().Add(inlineFor)
	val, err := n.one(s.home.driver(c.At.Mono), c)
	s.home.judge(err)
	if err != nil && late(err) {
		s.home.slow.Store(int64(n.Env.Now().Mono + inlinePause))
	}
	s.exit(c.At.Mono)
	s.answer(c, val, err)
	return c
}

// may reports whether the caller of a command with that context may run it now.
func (h *home) may(ctx context.Context) bool {
	if h == nil {
		return false
	}
	took, now := time.Duration(h.server.took.Load()), h.server.conn.Env.Now().Mono
	if took == 0 || took > inlineBelow || now < time.Duration(h.slow.Load()) {
		return false
	}
	end, ok := ctx.Deadline()
	return !ok || time.Until(end) > inlineFor
}

// spare reports whether the pool has connections for another one, should this one be lost. It looks only now and then,
// because that takes the pool's mutex. The server's mutex must be held.
func (h *home) spare(now time.Duration) bool {
	if h.looked == 0 || now-h.looked > homeLook {
		h.tight, h.looked = h.crowded(), max(now, 1)
	}
	return !h.tight
}

// enter takes the reserved connection for a caller that sends its command itself. It does so only if no lane is away, if
// the caller will not have to wait for the pool, or for a dial, which know no deadline, and if the connection may be lost: a
// caller gives it up when the server has stood still for inlineFor, and while the application uses up the pool it would not
// come back. A lane gives it up after the client's own timeout.
func (s *server) enter() bool {
	now := s.conn.Env.Now().Mono
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy > 0 || !s.home.ready || s.home.due(now) || !s.home.spare(now) || !s.home.take(now) {
		return false
	}
	s.listen(now)
	s.busy++
	return true
}

// exit gives the connection back. at is when the caller sent its command.
func (s *server) exit(at time.Duration) {
	now := s.conn.Env.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.home.ill {
		s.counted(1, now.Mono-at, now.Mono)
		s.measured(now.Mono-at, now.Mono)
	}
	s.busy--
	s.home.leave(true)
	for s.dispatch(now) { // what has gathered meanwhile
	}
}

// ByLanes keeps callers from running commands themselves, for tests of answers that come late.
func (n *Conn) ByLanes() { n.only.home.slow.Store(math.MaxInt64) }

// Narrow keeps n to MinLanes, for tests of what gathers behind the lanes.
func (n *Conn) Narrow() { n.only.most = MinLanes }

// late reports whether err means that an answer did not come in time.
func late(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
