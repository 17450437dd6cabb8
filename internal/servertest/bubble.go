package servertest

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Bubble is a Redis server in the process, for tests in virtual time: keys
// expire and scripts read TIME by the clock of the testing/synctest bubble in
// which it was made. Several of them make several independent nodes.
//
// No socket is involved, so that every goroutine of client and server belongs
// to the bubble, and a test that leaves one behind fails.
type Bubble struct {
	// Redis is the server itself, to look at its data or register commands.
	// It must never be started: a listener would leave the bubble. Its
	// SetPreHook would take INFO server away: Hook is for that.
	Redis *miniredis.Miniredis

	t  testing.TB
	mu sync.Mutex // guards all below

	links   []*Link
	clients map[*redis.Client]*Link
	skew    *time.Duration // nil: the server goes by the bubble's clock
	closed  bool
	node
}

// poolSize is more than a test has concurrent callers. A caller that has to
// queue for a connection takes a timer from a pool that go-redis shares
// between all clients of the process, and a timer of one bubble must not be
// used in another.
const poolSize = 400

// NewBubble makes a server. It must be called inside synctest.Test, with the t
// that is given there, and is closed at the end of the bubble.
func NewBubble(t testing.TB) *Bubble {
	t.Helper()
	if strconv.IntSize == 32 {
		t.Skip("miniredis keeps a script's numbers in an int of 32 bits, and tokens are larger")
	}
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	b := &Bubble{Redis: m, t: t, clients: map[*redis.Client]*Link{}}
	b.begin(upSince)
	t.Cleanup(b.Close)
	conn, err := m.Dial() // there is no Server before
	if err != nil {
		t.Fatalf("servertest: start: %v", err)
	}
	_ = conn.Close()
	b.server = m.Server()
	b.server.SetPreHook(b.before)
	return b
}

// Client returns a client with a link of its own, with go-redis' default
// options, except those that a bubble needs, changed by opts.
func (b *Bubble) Client(opts ...func(*redis.Options)) *redis.Client {
	b.t.Helper()
	link := b.NewLink()
	o := &redis.Options{
		Addr:     "127.0.0.1:6379", // no name: that would be looked up outside the bubble
		Dialer:   link.Dial,
		PoolSize: poolSize,
		// Their handler runs on goroutines that outlive a closed client.
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients[rdb] = link
	return rdb
}

// Link returns the link of a client that Client returned.
func (b *Bubble) Link(rdb *redis.Client) *Link {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	link, ok := b.clients[rdb]
	if !ok {
		b.t.Fatal("servertest: this client belongs to another bubble")
	}
	return link
}

// NewLink returns a link for a client made by the test itself, with the link's
// Dial as its Dialer. The test has to close that client.
func (b *Bubble) NewLink() *Link {
	link := &Link{faults: newFaults(), bubble: b}
	link.arriving, link.halted = b.tick, b.halted
	b.mu.Lock()
	defer b.mu.Unlock()
	b.links = append(b.links, link)
	return link
}

// Links returns the links of all clients, to treat the server as a whole.
func (b *Bubble) Links() []*Link {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*Link(nil), b.links...)
}

// Commands returns how many commands of each name reached the server, without
// the handshakes of connections. What a script calls is not counted.
func (b *Bubble) Commands() Counts {
	sum := Counts{}
	for _, link := range b.Links() {
		for name, n := range link.Commands() {
			sum[name] += n
		}
	}
	return sum
}

// ResetCommands sets the counters of all links to zero.
func (b *Bubble) ResetCommands() {
	for _, link := range b.Links() {
		link.ResetCommands()
	}
}

// Skew sets the server's wall clock apart from the bubble's by d, from now on.
// As on a real server, a step of that clock forward expires keys.
func (b *Bubble) Skew(d time.Duration) {
	b.mu.Lock()
	b.skew = &d
	b.mu.Unlock()
	b.tick()
}

// tick sets a skewed server's clock, which would stand still otherwise.
func (b *Bubble) tick() {
	b.mu.Lock()
	skew := b.skew
	b.mu.Unlock()
	if skew != nil {
		b.Redis.SetTime(time.Now().Add(*skew).UTC())
	}
}

// Restart does what a crash and a restart without persistence do: it closes
// all connections and forgets all data and scripts. The uptime is zero again
// and the run_id another. A server that is down stays down. Any goroutine of the
// test may call it.
func (b *Bubble) Restart() {
	b.t.Helper()
	for _, link := range b.Links() {
		link.Reset()
	}
	b.mu.Lock()
	b.begin(0) // first, so that nobody finds an old server without its data
	b.mu.Unlock()
	b.Redis.FlushAll()
	b.forgetScripts()
}

// forgetScripts empties the script cache, which miniredis does for commands only.
func (b *Bubble) forgetScripts() {
	b.t.Helper()
	conn, err := b.Redis.Dial()
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte("*2\r\n$6\r\nSCRIPT\r\n$5\r\nFLUSH\r\n"))
	}
	if err == nil {
		_, err = conn.Read(make([]byte, 16))
	}
	if err != nil {
		b.t.Errorf("servertest: restart: %v", err)
	}
}

// Close ends clients and server. It is called at the end of the bubble and may
// be called before.
func (b *Bubble) Close() {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return
	}
	links := b.Links()
	for _, link := range links {
		link.Refuse(net.ErrClosed)
		link.Heal() // for the dials that wait for it
	}
	b.Resume()
	for _, link := range links {
		link.end()
	}
	b.mu.Lock()
	for rdb := range b.clients {
		_ = rdb.Close()
	}
	b.mu.Unlock()
	b.Redis.Close()
	// Time stops with the bubble's first function, and go-redis leaves dials
	// behind that sleep through all their attempts, one second apart at the
	// most by default, before they see that nobody wants them any more.
	time.Sleep(time.Minute)
}

// Link is the way between one client and the server of a bubble.
//
// A dial takes a round trip, and waits while either direction is cut until it
// is healed or the context of the dial ends.
type Link struct {
	faults
	bubble *Bubble

	dialing sync.Mutex // guards refusal
	refusal error
}

// Refuse makes every dial fail with err, until Refuse(nil). Connections that
// exist are not touched.
func (l *Link) Refuse(err error) {
	l.dialing.Lock()
	defer l.dialing.Unlock()
	l.refusal = err
}

func (l *Link) refused() error {
	l.dialing.Lock()
	defer l.dialing.Unlock()
	if l.refusal != nil {
		return l.refusal
	}
	return l.bubble.refusal()
}

// Dial connects to the server; it fits the Dialer field of go-redis' options.
func (l *Link) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: address(addr), Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	for _, w := range []*way{&l.up, &l.down} {
		if due := l.due(w); !due.IsZero() {
			timer := time.NewTimer(time.Until(due))
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return fail(ctx.Err())
			case <-l.over:
				return fail(net.ErrClosed)
			}
		}
		if !l.pass(w, ctx.Done()) {
			return fail(ctx.Err())
		}
		if err := l.refused(); err != nil {
			return fail(err)
		}
	}
	server, err := l.bubble.Redis.Dial()
	if err != nil {
		return fail(err)
	}
	client, far := net.Pipe()
	r := l.connect(far, server)
	if err := l.bubble.refusal(); err != nil { // Down may have come too early to reset this one
		r.kill()
		_ = client.Close()
		return fail(err)
	}
	return &conn{Conn: client, relay: r, addr: address(addr)}, nil
}

// address is the net.Addr of a server that has none.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return strings.TrimSpace(string(a)) }
