package holdfast

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Trace is a set of hooks, in the manner of net/http/httptrace.ClientTrace. Any may be nil. They run on the goroutine at
// work, renewals included, and must return soon; several may run at once. No hook tells of a call that is refused: count its
// error, and time the call yourself. Of an adapter count the hooks Refused (ginlock), Deferred, HandedOn, Skipped and Failed
// (asynqlock), Skipped with an Err, and Late (cronlock). To count losses, count Released whose Err matches ErrLost. Lost fires
// earlier, but not for a loss that only the release finds; for a lock that is never released it is the only hook. Each lock
// that was acquired is told by Acquired and, when it is released, by Released: also those that DoAll gives back before it has
// all of them, perhaps after it has returned. A nested handle, see [WithReentrancy], is told by neither.
type Trace struct {
	// Waiting: a call that will wait found the lock held, or that other calls of this process already want it; none for
	// TryAcquire and WithWait(0). Label and TimeLeft tell of the holder, as far as it is known, and Holders of several.
	Waiting func(Event)
	// Acquired: Token, and Limit as in [Lock.Limit]; Elapsed is how long it took, with Lead the time as a standby; Attempts
	// is how many looks at Redis, 0 where another call of the process handed the lock over.
	Acquired func(Event)
	// Renewed: the lease was lengthened; TimeLeft is what it has now.
	Renewed func(Event)
	// Lost: the lock ended before its Release. Err matches ErrLost, or ErrClosed after a forced Shutdown; Elapsed is how
	// long it was held. It may come after Released, and after the call under the lock has returned. A loss that only
	// the release finds is not told here.
	Lost func(Event)
	// Released: Elapsed is how long it was held; Err is what Release returned, or with WithReleaseInBackground what it would
	// have returned, and with Lead the function's error too, unless that is the end of its context.
	Released func(Event)
	// LongHold: a lock has been held for 20 leases and is still renewed; again whenever that time has doubled. A handler may
	// hang: see WithMaxHold. Not for a leader.
	LongHold func(Event)
	// NodeError: a command to Redis failed or went unanswered; Err says how, and Node names the master where there are
	// several. It is the only hook of a Claim. Without a Key it is the connection on which grants arrive, told to the
	// Locker's traces: waiters poll until there is another.
	NodeError func(Event)
}

// Event is what a [Trace] hook is told. Key is always there, but for NodeError; other fields that a hook's comment does not
// name may be zero.
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

// LogTrace logs every event: losses, long holds, node errors and failed releases as warnings, the rest at
// debug level. A node error that follows another of the same node within a minute is at debug level too. A nil logger is
// [slog.Default], as it is when the event comes.
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
