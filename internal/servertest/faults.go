package servertest

import (
	"context"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// go-redis logs every failed dial, on a logger of the whole process. Tests with
// faults fail thousands of them on purpose, which would bury the message of a
// test that fails.
func init() { redis.SetLogger(silence{}) }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// faults is the state that a [Link] or a [FaultProxy] shares with the
// connections through it. In a bubble all of it is made inside the bubble.
type faults struct {
	mu       sync.Mutex // guards all below; never held over I/O or a caller's function
	up, down way
	command  func(args []string) Verdict
	message  func(channel, payload string) Verdict
	arriving func()                 // called before a command reaches the server
	halted   func() <-chan struct{} // cuts both ways until closed, unless it returns nil
	relays   map[*relay]struct{}
	counts   Counts
	over     chan struct{} // closed by end

	running sync.WaitGroup // the goroutines of all relays
}

func newFaults() faults {
	return faults{relays: map[*relay]struct{}{}, counts: Counts{}, over: make(chan struct{})}
}

// ended reports whether no connection may be made any more. mu must be held,
// so that nothing is added to running once end waits for it.
func (f *faults) ended() bool {
	select {
	case <-f.over:
		return true
	default:
		return false
	}
}

// A way is one direction of a link.
type way struct {
	cut   chan struct{} // nil while open, closed when healed
	delay time.Duration
}

// CutUp stops everything on its way to the server until Heal. Nothing is lost:
// what is sent meanwhile arrives at the heal, in order, also from connections
// that the client has closed by then.
func (f *faults) CutUp() { f.cut(&f.up) }

// CutDown stops everything on its way from the server until Heal. The server
// still receives and acts.
func (f *faults) CutDown() { f.cut(&f.down) }

func (f *faults) cut(w *way) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.cut == nil {
		w.cut = make(chan struct{})
	}
}

// Heal ends both cuts and lets through what they held back.
func (f *faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range []*way{&f.up, &f.down} {
		if w.cut != nil {
			close(w.cut)
			w.cut = nil
		}
	}
}

// Delay makes everything sent from now on take d in each direction, and a
// round trip 2d. What is on its way keeps its old delay and is not overtaken.
func (f *faults) Delay(d time.Duration) { f.DelayUp(d); f.DelayDown(d) }

// DelayUp makes everything sent to the server from now on take d.
func (f *faults) DelayUp(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.up.delay = d
}

// DelayDown makes everything sent by the server from now on take d.
func (f *faults) DelayDown(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down.delay = d
}

// Reset closes all connections at once, with what is on its way in them. New
// ones can be made straight away.
func (f *faults) Reset() {
	for _, r := range f.open() {
		r.kill()
	}
}

// OnCommand has fn decide the fate of each command, in the order in which the
// client sends them; nil ends that. fn is not asked about the commands of a
// connection's handshake. It may be called by several connections at a time,
// and must not wait for anything that the same connection has to deliver.
func (f *faults) OnCommand(fn func(args []string) Verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.command = fn
}

// OnMessage has fn decide the fate of each message published to the client.
func (f *faults) OnMessage(fn func(channel, payload string) Verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.message = fn
}

// Commands returns how many commands of each name reached the server over this
// link, without the handshakes of connections.
func (f *faults) Commands() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// ResetCommands sets the counters to zero.
func (f *faults) ResetCommands() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counts)
}

// Conns returns the number of open connections.
func (f *faults) Conns() int { return len(f.open()) }

func (f *faults) open() []*relay {
	f.mu.Lock()
	defer f.mu.Unlock()
	var open []*relay
	for r := range f.relays {
		open = append(open, r)
	}
	return open
}

// connect starts to relay between two connections and owns both from here on.
func (f *faults) connect(client, server net.Conn) *relay {
	r := &relay{
		faults: f, client: client, server: server,
		up: newQueue(), down: newQueue(), done: make(chan struct{}),
	}
	f.mu.Lock()
	if f.ended() {
		f.mu.Unlock()
		r.kill()
		return r
	}
	f.relays[r] = struct{}{}
	f.running.Add(1)
	f.mu.Unlock()
	go func() {
		defer f.running.Done()
		r.run()
		f.mu.Lock()
		delete(f.relays, r)
		f.mu.Unlock()
	}()
	return r
}

// end closes every connection, refuses new ones and waits for the goroutines.
func (f *faults) end() {
	f.mu.Lock()
	if !f.ended() {
		close(f.over)
	}
	f.mu.Unlock()
	f.Reset()
	f.running.Wait()
}

// judge asks the hook about a command.
func (f *faults) judge(args []string) Verdict {
	f.mu.Lock()
	fn := f.command
	f.mu.Unlock()
	if fn == nil {
		return Pass
	}
	return fn(args)
}

// judgeMessage asks the hook about a published message.
func (f *faults) judgeMessage(channel, payload string) Verdict {
	f.mu.Lock()
	fn := f.message
	f.mu.Unlock()
	if fn == nil {
		return Pass
	}
	return fn(channel, payload)
}

// arrive counts a command that is about to reach the server.
func (f *faults) arrive(name string) {
	f.mu.Lock()
	if !handshake[name] {
		f.counts[name]++
	}
	fn := f.arriving
	f.mu.Unlock()
	if fn != nil {
		fn()
	}
}

// due returns when something sent now over w arrives.
func (f *faults) due(w *way) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.delay <= 0 {
		return time.Time{}
	}
	return time.Now().Add(w.delay)
}

// pass waits until w is open; false when done comes first.
func (f *faults) pass(w *way, done <-chan struct{}) bool {
	for {
		f.mu.Lock()
		var cut <-chan struct{} = w.cut
		halted := f.halted
		f.mu.Unlock()
		if cut == nil && halted != nil {
			cut = halted()
		}
		if cut == nil {
			return true
		}
		select {
		case <-cut:
		case <-done:
			return false
		}
	}
}
