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
	// droppedEach is how often an inbox reports messages that were not for it, at most. The first report waits for
	// inboxPing: messages that are sent in bulk come in one report.
	droppedEach = time.Minute
)

// An Inbox is the channel on which Redis notifies a Locker that a call of its own, waiting in line, was granted the
// lock. With several masters the message is that the lock is free. There is one inbox for each server, with one
// connection, however many calls wait. It opens when the first call has to wait, and Shutdown closes it.
//
// Nothing depends on the arrival of a message: pub/sub forgets what it cannot deliver. A waiter also looks on its own,
// at once when the connection has been replaced, and every two seconds or sooner while it stands. A message that comes
// twice or late does no harm either: see Owner.Accept.
//
// A message is a hint, not an order, because any client that may PUBLISH to the channel can send one. The inbox acts only
// on those that name an owner of its Locker, which shows in the owner's id, and the key that this owner wants: see
// protocol.Seal. It counts the others, and they cost nothing else.
type Inbox struct {
	conn    *redisconn.Conn
	channel string
	usable  bool // whether the client can subscribe where scripts publish

	ours    func(id, key string) bool // whether an owner or waiter of this Locker has that id for that key
	deliver func(protocol.Grant) bool // acts on such a message, unless that owner wants something else
	Failed  func(err error, was bool) // called with the reason why grants do not arrive, and whether they did before
	Dropped func(err error)           // called when messages were dropped
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

	// Of the goroutine that receives.
	dropped int           // messages that have not been reported
	report  time.Duration // when to report them, or the earliest time for the next report
	strays  strays
}

// InboxName returns the name of a channel that nobody else has.
func InboxName(prefix string) string { return prefix + "holdfast:inbox:" + protocol.RandomID() }

// NewInbox returns an Inbox that passes to deliver what is for an owner of ours.
func NewInbox(conn *redisconn.Conn, channel string, ours func(id, key string) bool, deliver func(protocol.Grant) bool) *Inbox {
	in := &Inbox{conn: conn, channel: channel, ours: ours, deliver: deliver, news: make(chan struct{})}
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
		in.conn.Env.Await(in.ctx, pause/2+rand.N(pause))
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
	errReply       = errors.New("the client cannot make sense of a reply")
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
	err = reading(func() error { return sub.Subscribe(ctx, in.channel) })
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
		in.tell()
		var msg any
		err := reading(func() (err error) {
			msg, err = sub.ReceiveTimeout(ended, inboxPing)
			return err
		})
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

// reading calls f, in which go-redis may panic: it does so at replies that no Redis gives, such as an empty array in place of
// a message. That ends the connection and must not end the program, as the next connection may lead to a Redis.
func reading(f func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%w: %v", errReply, reason)
		}
	}()
	return f()
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
	if g, ok := protocol.ReadGrant(text); ok && in.ours(g.Owner, g.Key) && in.deliver(g) {
		return
	}
	if in.dropped == 0 {
		in.report = max(in.report, in.conn.Env.Now().Mono+inboxPing)
	}
	in.dropped++
}

// tell reports the messages that were dropped, if there are any and it is time.
func (in *Inbox) tell() {
	if in.dropped == 0 {
		return
	}
	if now := in.conn.Env.Now().Mono; now >= in.report {
		in.Dropped(fmt.Errorf("%d messages that were not for this Locker were dropped: a client that may PUBLISH to %s sends them", in.dropped, in.channel))
		in.dropped, in.report = 0, now+droppedEach
	}
}

// strays is the owners that were undone last, because a message named them after their end. Messages that go on coming
// must not bring a command each. So an owner is undone once for all messages about it that come in a while, and in that
// time there are no more owners than fit. What is not undone ends by itself: a grant after grantLease, a place in line
// after protocol.EntryLife.
type strays struct {
	latest [16]struct {
		owner string
		until time.Duration
	}
	oldest int
}

// Once reports whether an owner that has ended is to be undone, and not because of a message that came less than within
// ago.
func (in *Inbox) Once(owner string, within time.Duration) bool {
	u, now := &in.strays, in.conn.Env.Now().Mono
	if u.latest[u.oldest].until > now {
		return false
	}
	for i := range u.latest {
		if u.latest[i].owner == owner && u.latest[i].until > now {
			return false
		}
	}
	u.latest[u.oldest].owner, u.latest[u.oldest].until = owner, now+within
	u.oldest = (u.oldest + 1) % len(u.latest)
	return true
}
