package core

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
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

// inbox is the channel through which Redis tells a Locker that locks were granted to those of its calls that wait
// in line. There is one, with one connection, however many wait; it is opened when the first call has to wait,
// and closed by Shutdown.
//
// Nothing depends on a message that comes: pub/sub forgets what it cannot deliver. Whoever waits also looks by
// itself, at once when the connection was made again, and every two seconds or sooner as long as it stands. A
// message that comes twice or late does no harm either: see tenure.accept.
type inbox struct {
	node    *node
	traces  traces
	channel string
	counted bool // the server knows who listens, see line.lua
	usable  bool // whether the client can subscribe where scripts publish

	// On one of several masters.
	relay  func(id string, names protocol.Names) // has all messages
	turned func()                                // is told when up changes
	blamed bool                                  // the first failure was told; of run alone

	ctx   context.Context // ends with close
	close context.CancelFunc

	mu      sync.Mutex         // guards all below; never held during I/O
	tenures map[string]*tenure // by owner: all that may be granted a lock through here, until they are over
	running bool
	wanted  time.Duration // when somebody last had it open
	retry   time.Duration // not to be opened again before
	up      bool
	news    chan struct{} // closed when up becomes true

	since time.Duration           // when up became true
	drop  context.CancelCauseFunc // ends the connection that is up
	again time.Duration           // the server may be found not to know the inbox before that, to no effect
	pause time.Duration           // from one such effect to the next; 0: the server has known it since the last
	mute  bool                    // it was told that scripts may not publish
}

// inboxName is a channel that nobody else has.
func inboxName(prefix string) string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return prefix + "holdfast:inbox:" + base64.RawURLEncoding.EncodeToString(id[:])
}

func newInbox(n *node, channel string, traces traces) *inbox {
	in := &inbox{
		node: n, traces: traces, tenures: map[string]*tenure{}, news: make(chan struct{}), channel: channel,
	}
	// The shards of a Ring know nothing of each other's channels.
	_, ring := n.Client.(*redis.Ring)
	in.usable = !ring
	in.counted = !n.Many()
	in.ctx, in.close = context.WithCancel(context.Background())
	return in
}

// add makes t known, so that it can be told through the inbox, if it is open, and reports whether it is.
func (in *inbox) add(t *tenure) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.up {
		in.tenures[t.owner] = t
	}
	return in.up
}

// remove is for a tenure that is over: a grant for it is undone from now on.
func (in *inbox) remove(t *tenure) {
	in.mu.Lock()
	delete(in.tenures, t.owner)
	in.mu.Unlock()
}

// open sees to it that the inbox opens, and returns a channel that is closed when it does next.
func (in *inbox) open() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.wanted = in.node.clock.Now().Mono
	if in.usable && !in.running && in.ctx.Err() == nil && in.wanted >= in.retry {
		in.running = true
		in.node.gate.Join()
		go in.run()
	}
	return in.news
}

// isUp tells whether grants can be expected to arrive.
func (in *inbox) isUp() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.up
}

// set returns what was before.
func (in *inbox) set(up bool) (was bool) {
	in.mu.Lock()
	was = in.up
	if up && !in.up {
		close(in.news)
		in.news = make(chan struct{})
	}
	turned := up != in.up
	in.up = up
	if up && turned {
		in.since = in.node.clock.Now().Mono
	}
	in.mu.Unlock()
	if turned && in.turned != nil {
		in.turned()
	}
	return was
}

// run receives until the inbox is closed or refused, or fails while nobody waits.
func (in *inbox) run() {
	defer in.node.gate.Leave()
	const first = 10 * time.Millisecond
	for pause := first; in.ctx.Err() == nil; {
		began := in.node.clock.Now().Mono
		err := in.receive()
		if in.failed(err) {
			return
		}
		if in.node.clock.Now().Mono-began >= time.Second { // it is not one that fails as soon as it is made
			pause = first
		}
		timer := in.node.timers.Get(pause/2 + mathrand.N(pause))
		select {
		case <-timer.C:
		case <-in.ctx.Done():
		}
		in.node.timers.Rest(timer)
		pause = min(2*pause, time.Second)
	}
}

// failed reports whether the inbox is not to be opened again for now.
func (in *inbox) failed(err error) bool {
	was := in.set(false)
	if in.ctx.Err() != nil {
		return true
	}
	switch {
	case in.quiet(err):
	case err == errElsewhere || err == errMute:
		in.traces.emit(nodeError, Event{Err: fmt.Errorf("holdfast: %w", err)})
	case !in.node.votes:
		in.traces.emit(nodeError, Event{Err: fmt.Errorf("holdfast: waiting by polling, as SUBSCRIBE failed: %w", err)})
	case was || !in.blamed: // once for an outage: the other masters go on
		in.blamed = true
		in.traces.emit(nodeError, Event{Err: fmt.Errorf("holdfast: %s does not tell those who wait, as SUBSCRIBE failed: %w", in.node.name, err)})
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	now := in.node.clock.Now().Mono
	switch {
	case err == errMute:
		in.retry = now + muteRetry
	case permanent(err) || errors.Is(err, errUnsupported):
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
// old master lives on, nothing else tells. So the inbox subscribes anew, and those who wait look when it has. Where that
// does not help, as behind some proxies, it is done more and more rarely, and they look by themselves.
func (in *inbox) answered(at timing.Instant, deaf protocol.Deaf) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.up || at.Mono < in.since {
		return
	}
	switch deaf {
	case protocol.DeafElsewhere:
		if now := in.node.clock.Now().Mono; now >= in.again {
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
func (in *inbox) quiet(err error) bool {
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

// ended keeps go-redis from making a connection again that failed, which it would do at once, whoever has it closed
// meanwhile, and without telling what was missed. It looks at the context when it connects, and not when it reads.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// receive subscribes and receives until something fails.
func (in *inbox) receive() error {
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
			in.deliver(msg.Payload)
		}
	}
}

// subscription makes one that nothing is sent for yet. Clients of the user's own making may be a Ring behind another
// type, whose Subscribe panics, and it would do so on a goroutine where nobody can help it.
func (in *inbox) subscription() (sub *redis.PubSub, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%w: %v", errUnsupported, reason)
		}
	}()
	return in.node.Client.Subscribe(in.ctx), nil
}

// deliver hands a message to the tenure that it is for.
func (in *inbox) deliver(text string) {
	g, ok := protocol.ReadGrant(text)
	names, err := nameKeys(g.Key)
	if !ok || err != nil {
		return
	}
	if in.relay != nil {
		in.relay(g.Owner, names)
		return
	}
	in.mu.Lock()
	t := in.tenures[g.Owner]
	if t != nil {
		t.pushed = g
		select {
		case t.wake <- struct{}{}:
		default: // nil before the first refusal is read, or already woken
		}
	}
	in.mu.Unlock()
	if t == nil {
		// Granted to a tenure that is over, or to one that a delayed acquire put in line after it was over.
		in.node.stray(names, g.Owner)
	}
}

// waker returns the channel that says when there is something to take for t.
func (in *inbox) waker(t *tenure) <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	if t.wake == nil {
		t.wake = make(chan struct{}, 1)
		if t.pushed.Token > 0 {
			t.wake <- struct{}{}
		}
	}
	return t.wake
}

// take returns the grant that was delivered for t last.
func (in *inbox) take(t *tenure) protocol.Grant {
	in.mu.Lock()
	defer in.mu.Unlock()
	return t.pushed
}
