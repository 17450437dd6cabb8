package redisconn

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// A Class says what goes first while not everything can go at once: a lock that is held is worth more than one that is
// wanted.
type Class uint8

const (
	Asks   Class = iota // wants a lock, or wants to know something
	Frees               // frees a lock, or undoes a call that failed
	Renews              // keeps a lock
	pairs               // wants a lock, and a connection of its own for it, see Pair
	classes
)

// A Call is one script on its way, or the sum of several such calls.
type Call struct {
	At   timing.Instant // before it was sent; while it waits in the queue, when it got there
	Done chan struct{}  // signalled once, when Val and Err are set; nil if Do has run the call
	Val  any
	Err  error

	Ctx      context.Context
	Class    Class
	Patience time.Duration // how long its caller listens; 0 if that is not known
	Lasting  bool          // it is sent even if Ctx has ended
	Bulk     bool          // more of its kind than usual may travel together
	Args     []any         // the whole command
	Buf      [13]any
	Number   int64 // room for an argument
	script   *protocol.Script
	run      func() (any, error) // what is done in place of the script, see Pair
	cmd      redis.Cmd
	within   within

	Then  func(*Call) // called when Val and Err are set
	Parts []*Call     // what it is the sum of

	server     *server
	prev, next *Call // in the queue
	queued     bool  // guarded by the server's mutex
	waited     bool  // it was in the queue for a while

	state   atomic.Uint32
	after   func()     // see After
	signals *sync.Pool // the pool that Done comes from
}

// The bits of a call's state.
const (
	answered uint32 = 1 << iota // Val and Err are set
	followed                    // after is set
)

// Set makes c a call of s with args, as a function of package protocol returns them.
func (c *Call) Set(s *protocol.Script, args []any) *Call {
	c.script, c.Args = s, args
	return c
}

// Full returns the whole command with the text of the script, for a server that may not know it.
func (c *Call) Full() []any { return c.script.Full(c.Args) }

// key returns the key that decides which server the command goes to.
func (c *Call) key() string {
	key, _ := c.Args[3].(string)
	return key
}

// Answered reports whether Val and Err are set.
func (c *Call) Answered() bool { return c.state.Load()&answered != 0 }

// Leave stops listening to c. It reports whether c was never sent, and never will be. Of a sum, it takes back what was not
// sent yet.
func (c *Call) Leave() bool {
	for _, p := range c.Parts {
		p.Leave()
	}
	if c.server == nil || !c.server.withdraw(c) {
		return false
	}
	c.server.answer(c, nil, Unsent{Err: ErrSilence})
	return true
}

// After calls f when c is answered, at once if it is already. It is for a call that nobody listens to.
func (c *Call) After(f func()) {
	c.after = f
	if c.state.Or(followed)&answered != 0 {
		f()
	}
}

// Recycle gives Done back for reuse. The last listener calls it after it has received from Done.
func (c *Call) Recycle() {
	if c.signals != nil {
		c.signals.Put(c.Done)
		c.Done = nil
	}
}

// NewSum returns a Call for which nothing is sent: Answer sets what other calls amount to.
func NewSum(env *timing.Env) *Call { return &Call{At: env.Now(), Done: make(chan struct{}, 1)} }

// Answer sets the result of c, once.
func (c *Call) Answer(val any, err error) {
	c.Val, c.Err = val, err
	then, done := c.Then, c.Done
	was := c.state.Or(answered)
	if done != nil {
		done <- struct{}{}
	}
	if then != nil {
		then(c)
	}
	if was&followed != 0 {
		c.after()
	}
}

// within is the context of a command: it has the values of the caller's, for the hooks of the client, but not its end,
// which would leave open whether the command was sent. It has a deadline of its own, or none. Unlike the contexts of
// package context, it costs no allocation.
type within struct {
	context.Context
	end time.Time
}

func (w *within) Deadline() (time.Time, bool) { return w.end, !w.end.IsZero() }
func (*within) Done() <-chan struct{}         { return nil }
func (*within) Err() error                    { return nil }
