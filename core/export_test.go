package holdfast

import (
	"context"
	"strconv"
	"time"
	"unsafe"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// SkewWall moves the wall clock that l sees, as a suspended machine's runs ahead of the monotonic one.
func SkewWall(l *Locker, d time.Duration) { l.env.Clock.Skew(d) }

// Whole is how many bytes an acquisition on one Redis takes for its tenure and hold.
const Whole = unsafe.Sizeof(chunk{})

// Owner is the value that lk's tenure has in Redis.
func Owner(lk *Lock) string {
	switch o := lk.hold.stake.Owner.(type) {
	case *single.Owner:
		return o.ID
	case *reader:
		return o.Owner.(*single.Owner).ID
	}
	return lk.hold.stake.Owner.(interface{ ID() string }).ID()
}

// Contexts is how many contexts of lk its hold knows.
func Contexts(lk *Lock) int {
	lk.hold.mu.Lock()
	defer lk.hold.mu.Unlock()
	return len(lk.hold.handles.contexts)
}

// Margin and Patience for tests that compute with them.
var (
	Margin   = timing.Margin
	Patience = timing.Patience
)

// Under is how many calls, holds and goroutines of l are under way.
func Under(l *Locker) int64 { return l.env.Gate.Under() }

// Script is one of the package's scripts, for tables of its replies.
type Script struct{ s *protocol.Script }

var (
	AcquireScript = Script{protocol.AcquireScript}
	ForgetScript  = Script{protocol.ForgetScript}
	RenewScript   = Script{protocol.RenewScript}
	InspectScript = Script{protocol.InspectScript}
	PingScript    = Script{protocol.PingScript}
	PermitScript  = Script{protocol.PermitScript}
	ReturnScript  = Script{protocol.ReturnScript}
	KeepScript    = Script{protocol.KeepScript}
	VoteScript    = Script{protocol.VoteScript}
	SustainScript = Script{protocol.SustainScript}
	YieldScript   = Script{protocol.YieldScript}

	TickScript     = Script{protocol.TickScript}
	WithdrawScript = Script{protocol.WithdrawScript}
)

// Run executes the script as a Locker does: once, with the text where the server does not know it.
func (s Script) Run(ctx context.Context, client redis.UniversalClient, args ...any) (any, error) {
	n := redisconn.New(client, nil)
	c := &redisconn.Call{Ctx: ctx}
	return n.Run(c.Set(s.s.Call(args...)))
}

// Text is the script itself.
func (s Script) Text() string { return s.s.Text() }

// ScriptName tells which script a command runs.
var ScriptName = protocol.ScriptName

// JudgeLate acquires key and has the answer judged as if it had been on its way for ago and ctx had not
// ended before. It reports whether that made a lock; nothing stays.
func JudgeLate(ctx context.Context, l *Locker, key string, ago time.Duration) bool {
	stored, _ := protocol.CheckKey(key)
	a := &acquisition{locker: l, ctx: ctx, cfg: &l.cfg, key: stored}
	a.newStake()
	c := new(redisconn.Call)
	a.stake.Try(context.Background(), c, false, time.Second)
	if !c.Answered() {
		<-c.Done
	}
	c.At.Mono -= ago
	lock, _ := a.judge(c)
	if lock == nil {
		a.stake.undo()
		return false
	}
	_ = lock.Release(ctx)
	return true
}

// NameKeys is the lock's key and its companions.
func NameKeys(key string) ([]string, error) {
	n, err := nameKeys(key)
	return []string{n.Lock, n.Fence, n.Tombstone("owner"), n.Line, n.Waits}, err
}

// Scheduled is how many holds the scheduler knows.
func Scheduled(l *Locker) int {
	l.sched.mu.Lock()
	defer l.sched.mu.Unlock()
	return l.sched.holds.Len()
}

// StopTimer keeps the scheduler from running.
func StopTimer(l *Locker) { l.sched.stop() }

// Turns is how many keys calls of l stand in a row for, or hold.
func Turns(l *Locker) int {
	l.turns.mu.Lock()
	defer l.turns.mu.Unlock()
	return len(l.turns.rows)
}

// Tenures is how many l's inbox knows.
func Tenures(l *Locker) int { return l.one.Waiting() }

// Left is for how long lk counts as held by the monotonic clock alone. Unlike Err it does not end what is over.
func Left(lk *Lock) time.Duration {
	h := lk.hold
	if h.ended.Load() != nil {
		return 0
	}
	return max(0, h.lease.ends()-h.locker.env.Now().Mono)
}

// ReportLate is a Progress under lk that read the clock ago before it takes effect.
func ReportLate(lk *Lock, ago time.Duration) {
	lk.hold.lease.progress.report(lk.hold.locker.env.Now().Mono - ago)
}

// Answer is an answer to a renewal that arrives now and says that d of the lease of lk were left.
func Answer(lk *Lock, d time.Duration) { _ = lk.hold.confirm(lk.hold.locker.env.Now(), d) }

// StallTimer keeps the scheduler from running for d, as a runtime that starves does.
func StallTimer(l *Locker, d time.Duration) {
	l.sched.mu.Lock()
	defer l.sched.mu.Unlock()
	l.sched.holds.Stall(d)
}

// ByLanes keeps l's commands from running on their callers' goroutines, where an answer that comes late is not heard.
func ByLanes(l *Locker) { l.one.ByLanes() }

// MinLanes is how many commands of one Locker can be under way at least.
const MinLanes = redisconn.MinLanes

// Narrow keeps l to MinLanes, however long answers take.
func Narrow(l *Locker) { l.one.Narrow() }

// LaneRest is for how long the goroutine of a lane waits for the next command.
const LaneRest = redisconn.LaneRest

// MostCleanups is how many calls that failed a Locker remembers to undo.
const MostCleanups = redisconn.CleanMost

// Undo has n calls fail whose outcome nobody knows.
func Undo(l *Locker, n int) {
	s := l.one
	for i := range n {
		key, _ := protocol.CheckKey("undone")
		t := &single.Tenure{Tainted: true, Sent: l.env.Now().Mono}
		t.Start(s.Conn, nil, key.Owned(s.Seal, strconv.Itoa(i)), time.Second)
		t.Undo()
	}
}

// Pauses is how long an acquisition with those options waits after each of n looks that find what seen says, and whether
// the last of these pauses ends its wait, which began passed ago.
func Pauses(n int, seen Look, wait, passed time.Duration) (pauses []time.Duration, last bool) {
	c := defaults()
	s := schedule{wait: wait, pause: c.pollMin}
	l := look{held: &HeldError{TimeLeft: seen.Left}, place: seen.Place, pushed: seen.Pushed, foreign: seen.Foreign, split: seen.Split}
	if seen.Failed {
		l.held = nil
	}
	for range n {
		var d time.Duration
		d, last = s.next(&l, &c, passed)
		pauses = append(pauses, d)
	}
	return pauses, last
}

// Look is what a look finds, for Pauses.
type Look struct {
	Left                           time.Duration
	Place                          int
	Pushed, Foreign, Split, Failed bool
}
