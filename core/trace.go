package holdfast

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. Hooks run on the
// goroutine that does the work, renewals included, so they must return quickly, and several may run at once.
//
// Each acquired lock is reported by Acquired, and by Released when it is released. That includes the locks that DoAll
// gives back on its way; their Released may come after DoAll has returned. A nested handle, see [WithReentrancy], is
// reported by neither.
//
// To count losses, count the Released events whose Err matches ErrLost. Lost usually fires earlier, but not for a loss
// that only the release finds. If a lock is never released, Lost is the only hook that reports its loss.
//
// No hook reports a call that was refused: count the errors, and measure their time yourself. In the adapters count the
// hooks Refused (ginlock); Deferred, HandedOn, Skipped and Failed (asynqlock); Late, and Skipped with an Err (cronlock).
type Trace struct {
	// Waiting: a call is about to wait, because another holder has the lock or other calls of this process want it.
	// Label, TimeLeft and Holders describe the holder, if known. Not called for TryAcquire and WithWait(0).
	Waiting func(Event)
	// Acquired: the lock was acquired. Token; Limit, as in [Lock.Limit]; Elapsed, how long it took (for Lead, the time as
	// a standby); Attempts, how often Redis was asked, 0 if another call of the process handed the lock over.
	Acquired func(Event)
	// Renewed: the lease was renewed. TimeLeft is what it has left now.
	Renewed func(Event)
	// Lost: the lock ended before its Release. Err matches ErrLost, or ErrClosed after a forced Shutdown; Elapsed is how
	// long the lock was held. Lost may come after Released, and after the call under the lock has returned. It is not
	// called for a loss that only the release finds.
	Lost func(Event)
	// Released: the lock was released. Elapsed is how long it was held; Err is what Release returned, or with
	// WithReleaseInBackground would have returned. For Lead, Err includes the function's error, unless that is the end of
	// its context.
	Released func(Event)
	// LongHold: a lock has been held for 20 leases and is still renewed; called again whenever that time has doubled. The
	// handler may hang: see WithMaxHold. Not called for a leader.
	LongHold func(Event)
	// NodeError: a command to Redis failed or was not answered. Err says how; Node names the master if there are several.
	// It is the only hook that Claim calls. Without a Key it concerns the connection on which waiters are notified, and
	// is called for the Locker's traces alone: waiters poll until the connection is back.
	NodeError func(Event)
}

// An Event is the argument of a [Trace] hook. Key is always set, except in NodeError. Other fields that a hook's comment
// does not name may be zero.
type Event struct {
	Key      string // as stored in Redis, prefix included
	Token    int64
	Label    string
	Elapsed  time.Duration
	TimeLeft time.Duration
	Attempts int
	Limit    int
	Holders  int
	Node     string // its address
	Err      error
}

type traces []*Trace

// emit calls one hook of every trace.
func (ts traces) emit(hook func(*Trace) func(Event), e Event) {
	if of, ok := e.Err.(interface{ Node() string }); ok && len(ts) > 0 {
		e.Node = of.Node()
	}
	for _, t := range ts {
		if f := hook(t); f != nil {
			f(e)
		}
	}
}

func waiting(t *Trace) func(Event)   { return t.Waiting }
func acquired(t *Trace) func(Event)  { return t.Acquired }
func renewed(t *Trace) func(Event)   { return t.Renewed }
func lost(t *Trace) func(Event)      { return t.Lost }
func released(t *Trace) func(Event)  { return t.Released }
func longHold(t *Trace) func(Event)  { return t.LongHold }
func nodeError(t *Trace) func(Event) { return t.NodeError }

const nodeErrorText = "redis error"

// outageEnds is for how long a node has to do without an error for the next one to be another outage.
const outageEnds = time.Minute

// LogTrace returns a Trace that logs every event: losses, long holds, node errors and failed releases as warnings, the
// rest at debug level. A node error is a warning only if that node had no error in the minute before; otherwise it is
// logged at debug level. If log is nil, events go to what [slog.Default] returns at the time.
func LogTrace(log *slog.Logger) *Trace {
	var mu sync.Mutex
	latest := map[string]time.Time{} // error of each node
	again := func(node string) bool {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		at, known := latest[node]
		latest[node] = now
		return known && now.Sub(at) < outageEnds
	}
	hook := func(level slog.Level, msg string) func(Event) {
		return func(e Event) {
			level := level
			attrs := []slog.Attr{slog.String("key", e.Key)}
			if e.Token != 0 {
				attrs = append(attrs, slog.Int64("token", e.Token))
			}
			if e.Label != "" {
				attrs = append(attrs, slog.String("label", e.Label))
			}
			if e.Elapsed != 0 {
				attrs = append(attrs, slog.Duration("elapsed", e.Elapsed))
			}
			if e.TimeLeft != 0 {
				attrs = append(attrs, slog.Duration("left", e.TimeLeft))
			}
			if e.Node != "" {
				attrs = append(attrs, slog.String("node", e.Node))
			}
			if e.Err != nil {
				level = slog.LevelWarn
				if msg == nodeErrorText && again(e.Node) {
					level = slog.LevelDebug
				}
				attrs = append(attrs, slog.String("err", e.Err.Error()))
			}
			log := log
			if log == nil {
				log = slog.Default()
			}
			log.LogAttrs(context.Background(), level, "holdfast: "+msg, attrs...)
		}
	}
	return &Trace{
		Waiting:   hook(slog.LevelDebug, "waiting"),
		Acquired:  hook(slog.LevelDebug, "acquired"),
		Renewed:   hook(slog.LevelDebug, "renewed"),
		Lost:      hook(slog.LevelWarn, "lost"),
		Released:  hook(slog.LevelDebug, "released"),
		LongHold:  hook(slog.LevelWarn, "held for long"),
		NodeError: hook(slog.LevelWarn, nodeErrorText),
	}
}
