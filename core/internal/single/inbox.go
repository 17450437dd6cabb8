package single

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

const (
	// inboxPing is how often the connection of an inbox is tried out. One that is silent for two of them is made
	// anew.
	inboxPing = 5 * time.Second
	// inboxRetry is how long a refusal of SUBSCRIBE is taken for the last word.
	inboxRetry = time.Minute
	// muteRetry is how long a server counts as one that lets no script publish, also in grant.lua. Longer, as to find out
	// anew costs a waiter up to two seconds.
	muteRetry = 10 * time.Minute
)

// An Inbox is the channel through which Redis tells a Locker that locks were granted to those of its calls that wait
// in line. There is one for each server, with one connection, however many wait; it is opened when the first call has to
// wait, and closed by Shutdown.
//
// Nothing depends on a message that comes: pub/sub forgets what it cannot deliver. A waiter also looks by
// itself: at once when the connection was made again, and every two seconds or sooner as long as it stands. A
// message that comes twice or late does no harm either: see Owner.Accept.
type Inbox struct {
	conn    *redisconn.Conn
	channel string
	usable  bool // whether the client can subscribe where scripts publish

	deliver func(g protocol.Grant, names protocol.Names)
	Failed  func(err error, was bool) // is told why grants do not arrive, and whether they did before
	Turned  func()                    // is told when that changes; may be nil

	ctx   context.Context // ends with Close
	Close context.CancelFunc

	mu      sync.Mutex // guards all below; never held during I/O
	running bool
	wanted  time.Duration // when somebody last had it open
	retry   time.Duration // not to be opened before: the server refused
	up      bool
	news    chan struct{}           // closed, and made anew, when up becomes true
	since   time.Duration           // when that was
	drop    context.CancelCauseFunc // ends the connection that is up
	again   time.Duration           // the server may be found not to know the inbox before that, to no effect
	pause   time.Duration           // from one such effect to the next; 0: the server has known it since the last
	mute    bool                    // it was told that scripts may not publish
}

// InboxName is a channel that nobody else has.
func InboxName(prefix string) string { return prefix + "holdfast:inbox:" + protocol.RandomID() }

// NewInbox is one that hands its messages to deliver.
func NewInbox(conn *redisconn.Conn, channel string, deliver func(protocol.Grant, protocol.Names)) *Inbox {
	in := &Inbox{conn: conn, channel: channel, deliver: deliver, news: make(chan struct{})}
	_, ring := conn.Client.(*redis.Ring) // whose shards know nothing of each other's channels
	in.usable = !ring
	in.ctx, in.Close = context.WithCancel(context.Background())
	return in
}

// Open sees to it that the inbox opens, and returns a channel that is closed when it does next.
func (in *Inbox) Open() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.wanted = in.conn.Env.Now().Mono
	if in.usable && !in.running && in.ctx.Err() == nil && in.wanted >= in.retry {
		in.running = true
		in.conn.Env.Go(in.run)
	}
	return in.news
}

// Up tells whether grants can be expected to arrive.
func (in *Inbox) Up() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.up
}

// set returns what was before.
func (in *Inbox) set(up bool) (was bool) {
	in.mu.Lock()
	was = in.up
	if up && !in.up {
		close(in.news)
		in.news = make(chan struct{})
	}
	turned := up != in.up
	in.up = up
	if up && turned {
		in.since = in.conn.Env.Now().Mono
	}
	in.mu.Unlock()
	if turned && in.Turned != nil {
		in.Turned()
	}
	return was
}

// run receives until the inbox is closed or refused, or fails while nobody waits.
func (in *Inbox) run() {
	const first = 10 * time.Millisecond
	for pause := first; in.ctx.Err() == nil; {
		began := in.conn.Env.Now().Mono
		err := in.receive()
		if in.failed(err) {
			return
		}
		if in.conn.Env.Now().Mono-began >= time.Second { // it is not one that fails as soon as it is made
			pause = first
		}
		in.conn.Env.Await(in.ctx, nil, pause/2+rand.N(pause))
		pause = min(2*pause, time.Second)
	}
}

// failed reports whether the inbox is not to be opened again for now.
func (in *Inbox) failed(err error) bool {
	was := in.set(false)
	if in.ctx.Err() != nil {
		return true
	}
	if !in.quiet(err) {
		in.Failed(err, was)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	now := in.conn.Env.Now().Mono
	switch {
	case err == errMute:
		in.retry = now + muteRetry
	case redisconn.Permanent(err) || errors.Is(err, errUnsupported):
		in.retry = now + inboxRetry
	}
	in.running = now < in.wanted+inboxPing && now >= in.retry
	return !in.running
}

var (
	errStalled     = errors.New("the connection went silent")
	errUnsupported = errors.New("the client cannot")
	errElsewhere   = errors.New("subscribing anew: the server that has the locks does not know the subscription, perhaps after a failover, or as a name or an address leads elsewhere now")
	errMute        = errors.New("waiting by polling, which is slower: the server lets no script PUBLISH")
)

// answered takes into account what the answer to a look that was sent at at says of the inbox, if it was open by then.
//
// A server that knows nobody there may be another than the one that has the subscription: after a failover in which the
// old master lives on, nothing else tells. So the inbox subscribes anew, and the waiters look when it has. Where that
// does not help, as behind some proxies, it is done more and more rarely, and waiters look by themselves.
func (in *Inbox) answered(at timing.Instant, deaf protocol.Deaf) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.up || at.Mono < in.since {
		return
	}
	switch deaf {
	case protocol.DeafElsewhere:
		if now := in.conn.Env.Now().Mono; now >= in.again {
			in.pause = min(max(2*in.pause, time.Second), inboxRetry)
			in.again = now + in.pause
			in.drop(errElsewhere)
		}
	case protocol.DeafMute:
		in.drop(errMute)
	default:
		in.pause = 0
	}
}

// quiet tells whether err was told before, and not to be told again.
func (in *Inbox) quiet(err error) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch err {
	case errElsewhere:
		return in.pause > time.Second
	case errMute:
		was := in.mute
		in.mute = true
		return was
	}
	return false
}

// ended keeps go-redis from making a connection again that failed. It would do that at once, though the inbox was closed
// meanwhile, and without telling what was missed. It looks at the context when it connects, and not when it reads.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// receive subscribes and receives until something fails.
func (in *Inbox) receive() error {
	ctx, drop := context.WithCancelCause(in.ctx)
	defer drop(nil)
	in.mu.Lock()
	in.drop = drop
	in.mu.Unlock()
	sub, err := in.subscription()
	if err != nil {
		return err
	}
	err = sub.Subscribe(ctx, in.channel)
	// Closing is what interrupts go-redis in a read. While it connects, the context does, and Close would wait.
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(closed); _ = sub.Close() })
	defer func() {
		if stop() {
			_ = sub.Close()
		} else {
			<-closed
		}
	}()
	if err != nil {
		return err
	}
	silent := false
	for {
		msg, err := sub.ReceiveTimeout(ended, inboxPing)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			if silent {
				return errStalled
			}
			silent = true
			if err = sub.Ping(ended); err == nil {
				continue
			}
		}
		if err != nil {
			if reason := context.Cause(ctx); reason != nil {
				return reason
			}
			return err
		}
		silent = false
		switch msg := msg.(type) {
		case *redis.Subscription:
			in.set(true)
		case *redis.Message:
			in.message(msg.Payload)
		}
	}
}

// subscription makes one that nothing is sent for yet. Clients of the user's own making may be a Ring behind another
// type, whose Subscribe panics, and it would do so on a goroutine where nobody can help it.
func (in *Inbox) subscription() (sub *redis.PubSub, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%w: %v", errUnsupported, reason)
		}
	}()
	return in.conn.Client.Subscribe(in.ctx), nil
}

func (in *Inbox) message(text string) {
	if g, ok := protocol.ReadGrant(text); ok {
		if names, err := protocol.NameKeys(g.Key); err == nil {
			in.deliver(g, names)
		}
	}
}
