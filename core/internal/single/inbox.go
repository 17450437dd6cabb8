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
	// inboxPing is how often an inbox checks its connection. A connection that stays silent for two checks is replaced.
	inboxPing = 5 * time.Second
	// inboxRetry is how long an inbox waits before it tries again after SUBSCRIBE was refused.
	inboxRetry = time.Minute
	// muteRetry is how long a server counts as one that lets no script publish, in grant.lua too. It is longer than
	// inboxRetry, because finding out anew costs a waiter up to two seconds.
	muteRetry = 10 * time.Minute
)

// An Inbox is the channel on which Redis notifies a Locker that a call of its own, waiting in line, was granted the
// lock. With several masters the message is that the lock is free. There is one inbox for each server, with one
// connection, however many calls wait. It opens when the first call has to wait, and Shutdown closes it.
//
// Nothing depends on the arrival of a message: pub/sub forgets what it cannot deliver. A waiter also looks on its own,
// at once when the connection has been replaced, and every two seconds or sooner while it stands. A message that comes
// twice or late does no harm either: see Owner.Accept.
type Inbox struct {
	conn    *redisconn.Conn
	channel string
	usable  bool // whether the client can subscribe where scripts publish

	deliver func(g protocol.Grant, names protocol.Names)
	Failed  func(err error, was bool) // called with the reason why grants do not arrive, and whether they did before
	Turned  func()                    // called when Up changes; may be nil

	ctx   context.Context // ends with Close
	Close context.CancelFunc

	mu      sync.Mutex // guards all below; never held during I/O
	running bool
	wanted  time.Duration // when Open was last called
	retry   time.Duration // the inbox does not open before that: the server refused
	up      bool
	news    chan struct{}           // closed, and replaced, when up becomes true
	since   time.Duration           // when up became true
	drop    context.CancelCauseFunc // ends the current connection
	again   time.Duration           // until then, no new subscription if the server does not know the inbox
	pause   time.Duration           // from one such subscription to the next; 0: the server has known the inbox since
	mute    bool                    // that scripts may not publish was reported
}

// InboxName returns the name of a channel that nobody else has.
func InboxName(prefix string) string { return prefix + "holdfast:inbox:" + protocol.RandomID() }

// NewInbox returns an Inbox that passes its messages to deliver.
func NewInbox(conn *redisconn.Conn, channel string, deliver func(protocol.Grant, protocol.Names)) *Inbox {
	in := &Inbox{conn: conn, channel: channel, deliver: deliver, news: make(chan struct{})}
	_, ring := conn.Client.(*redis.Ring) // the shards of a Ring know nothing of each other's channels
	in.usable = !ring
	in.ctx, in.Close = context.WithCancel(context.Background())
	return in
}

// Open makes the inbox open, if it is not, and returns a channel that is closed the next time it does.
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

// Up reports whether grants can be expected to arrive.
func (in *Inbox) Up() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.up
}

// set sets up and returns what it was before.
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

// run receives until the inbox is closed or refused, or until it fails while nobody waits.
func (in *Inbox) run() {
	const first = 10 * time.Millisecond
	for pause := first; in.ctx.Err() == nil; {
		began := in.conn.Env.Now().Mono
		err := in.receive()
		if in.failed(err) {
			return
		}
		if in.conn.Env.Now().Mono-began >= time.Second { // a connection that does not fail as soon as it is made
			pause = first
		}
		in.conn.Env.Await(in.ctx, nil, pause/2+rand.N(pause))
		pause = min(2*pause, time.Second)
	}
}

// failed deals with the end of a connection. It reports whether the inbox must not be opened again for now.
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
	errUnsupported = errors.New("the client cannot subscribe")
	errElsewhere   = errors.New("subscribing again: the server that has the locks does not know the subscription, perhaps because of a failover, or because a name or address now leads elsewhere")
	errMute        = errors.New("waiters poll, which is slower, because the server lets no script PUBLISH")
)

// answered evaluates what the answer to a look says about the inbox. The look was sent at at; the inbox must have been
// up by then.
//
// A server that knows no subscriber of the inbox may not be the server that has the subscription: after a failover in
// which the old master lives on, nothing else shows that. So the inbox subscribes anew, and waiters look as soon as it
// has. If that does not help, as behind some proxies, it is done more and more rarely, and waiters look on their own.
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

// quiet reports whether err was reported before and must not be reported again.
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

// ended keeps go-redis from replacing a connection that failed. It would do so at once, even if the inbox was closed
// meanwhile, and without a word about what was missed. go-redis looks at this context when it connects, not when it
// reads.
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
	// Closing the subscription interrupts go-redis in a read. While go-redis connects, the context does that, and Close
	// would wait.
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

// subscription returns a subscription for which nothing has been sent yet. A client of the user's own type may wrap a
// Ring, whose Subscribe panics, and it would panic on a goroutine where nobody can recover.
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
