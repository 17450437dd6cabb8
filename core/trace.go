package holdfast

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. Hooks run on the
// goroutine that does the work, renewals included, so they must return quickly, and several may run at once.
//
// Acquired and Ended report each acquired lock once, but no nested handle, see [WithReentrancy]. After each Waiting comes
// either Acquired or Refused, with Waited set. If a hook panics, the other traces' hooks are called all the same.
type Trace struct {
	// Waiting: a call is about to wait for another holder, or for other calls of this process. Share is its name, see
	// [WithShare]. Label, TimeLeft and Holders describe the holder, if known.
	Waiting func(Event)
	// Acquired: the lock was acquired. Token; Limit, as in [Lock.Limit]; Elapsed, how long it took (for Lead, the time
	// as a standby); Waited; Attempts, how often Redis was asked, 0 if another call of the process handed the lock over.
	Acquired func(Event)
	// Refused: a call ended without the lock. Err is the call's error; Elapsed, how long it took; Waited; Attempts, as above, or
	// 0 if the call ended before it asked. Not called for an ErrInvalid. Lead goes on after an ErrUnavailable, and DoAll if a lock that it has kept was lost while it waited.
	Refused func(Event)
	// Renewed: TimeLeft is what the lease has left now.
	Renewed func(Event)
	// Ended: the lock was released, or Lost. Elapsed is how long it was held. Err is what Release returns, or would have
	// returned without WithReleaseInBackground, and for Lead also the function's error, if the lock was not lost before
	// and that error is not the end of its context.
	Ended func(Event)
	// LongHold: a lock has been held for 20 leases, or twice as long as at the last call: the handler may hang, see
	// WithProgress. Not called for a leader.
	LongHold func(Event)
	// NodeError: a command to Redis, also one of package tick, failed or was not answered. Err says how; Node names the
	// master if there are several. Without a Key it concerns the connection on which waiters are notified: they poll
	// until it is back.
	NodeError func(Event)

	logs bool // made by LogTrace
}

// An Event is the argument of a [Trace] hook. Key is always set, except in NodeError. Other fields that a hook's comment
// does not name may be zero.
type Event struct {
	Key      string // as stored in Redis, prefix included
	Token    int64
	Label    string
	Share    string
	Elapsed  time.Duration
	TimeLeft time.Duration
	Waited   bool // Waiting was called
	Lost     bool // Err is about a loss of this lock, and not only of one that the function of Lead has lost
	Attempts int
	Limit    int
	Holders  int
	Node     string // its address
	Err      error
}

type traces []*Trace

// emit calls one hook of every trace, also after one that panics: another trace may count.
func (ts traces) emit(hook func(*Trace) func(Event), e Event) {
	if len(ts) == 0 {
		return
	}
	if of, ok := e.Err.(interface{ Node() string }); ok {
		e.Node = of.Node()
	}
	defer ts[1:].emit(hook, e)
	if f := hook(ts[0]); f != nil {
		f(e)
	}
}

// logs reports whether one of them is a LogTrace.
func (ts traces) logs() bool { return slices.ContainsFunc(ts, func(t *Trace) bool { return t.logs }) }

func waiting(t *Trace) func(Event)   { return t.Waiting }
func acquired(t *Trace) func(Event)  { return t.Acquired }
func refusal(t *Trace) func(Event)   { return t.Refused }
func renewed(t *Trace) func(Event)   { return t.Renewed }
func ended(t *Trace) func(Event)     { return t.Ended }
func longHold(t *Trace) func(Event)  { return t.LongHold }
func nodeError(t *Trace) func(Event) { return t.NodeError }

const (
	refusedText   = "refused"
	nodeErrorText = "redis error"
)

// outageEnds is for how long a node has to do without an error for the next one to be another outage.
const outageEnds = time.Minute

// LogTrace returns a Trace that logs every event: losses, long holds, node errors and failed releases as warnings, the
// rest at debug level. A node's errors are warnings again when it has had none for a minute. If log is nil, events go
// to what [slog.Default] returns at the time. The adapters, which log a loss by default, leave it to LogTrace.
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
			if e.Share != "" {
				attrs = append(attrs, slog.String("share", e.Share))
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
				if msg == refusedText || msg == nodeErrorText && again(e.Node) {
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
	lost, released := hook(slog.LevelWarn, "lost"), hook(slog.LevelDebug, "released")
	return &Trace{
		logs:     true,
		Waiting:  hook(slog.LevelDebug, "waiting"),
		Acquired: hook(slog.LevelDebug, "acquired"),
		Refused:  hook(slog.LevelDebug, refusedText),
		Renewed:  hook(slog.LevelDebug, "renewed"),
		Ended: func(e Event) {
			if e.Lost {
				lost(e)
			} else {
				released(e)
			}
		},
		LongHold:  hook(slog.LevelWarn, "held for long"),
		NodeError: hook(slog.LevelWarn, nodeErrorText),
	}
}
