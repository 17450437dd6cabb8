package cronlock_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

// journal is what happens on all replicas.
type journal struct {
	mu     sync.Mutex
	events map[string][]cronlock.Event // by hook
	live   int
	most   int                    // runs at the same time
	runs   map[time.Time][]string // which replicas ran a tick
}

func newJournal() *journal {
	return &journal{events: map[string][]cronlock.Event{}, runs: map[time.Time][]string{}}
}

func (j *journal) trace() *cronlock.Trace {
	hook := func(name string) func(cronlock.Event) {
		return func(e cronlock.Event) {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.events[name] = append(j.events[name], e)
		}
	}
	return &cronlock.Trace{
		Ran: hook("ran"), Skipped: hook("skipped"), Late: hook("late"), Lost: hook("lost"), Failed: hook("failed"),
		Unlocked: hook("unlocked"), Differs: hook("differs"),
	}
}

func (j *journal) of(hook string) []cronlock.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]cronlock.Event(nil), j.events[hook]...)
}

// total is the number of runs that have begun.
func (j *journal) total() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.runs {
		n += len(r)
	}
	return n
}

// peak is how many runs there were at the same time.
func (j *journal) peak() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.most
}

// of a tick: the replicas that ran it.
func (j *journal) ranOn(tick time.Time) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.runs[tick.UTC()])
}

// ticks are those that ran, in their order.
func (j *journal) ticks() []time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Keys(j.runs), time.Time.Compare)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprint("runs ", j.runs, ", events ", j.events)
}

// begin notes a run, and returns what notes its end.
func (j *journal) begin(ctx context.Context, replica string) (end func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, tick, _ := cronlock.Tick(ctx)
	tick = tick.UTC()
	j.runs[tick] = append(j.runs[tick], replica)
	j.live++
	j.most = max(j.most, j.live)
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.live--
	}
}

// pass lets virtual time pass, and waits for what is due by then.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// bubble runs fn in virtual time, with a server of its own.
func bubble(t *testing.T, fn func(t *testing.T, b *servertest.Bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, servertest.NewBubble(t)) })
}

// replica is what would be a process of its own.
type replica struct {
	name   string
	rdb    *redis.Client
	link   *servertest.Link
	locker *holdfast.Locker
	cron   *cron.Cron
	guard  *cronlock.Guard
	j      *journal
}

// parser has seconds, which may be left out.
var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

var replicas atomic.Int64 // of all tests

func newReplica(t testing.TB, b *servertest.Bubble, j *journal, opts ...cronlock.Option) *replica {
	t.Helper()
	r := &replica{name: fmt.Sprint("replica-", replicas.Add(1)), rdb: b.Client(func(o *redis.Options) { o.DialTimeout = time.Second }), j: j}
	r.link = b.Link(r.rdb)
	var err error
	if r.locker, err = holdfast.New(r.rdb, holdfast.WithLabel(r.name)); err != nil {
		t.Fatal(err)
	}
	r.cron = cron.New(cron.WithParser(parser), cron.WithLocation(time.UTC))
	opts = append([]cronlock.Option{cronlock.WithTrace(j.trace())}, opts...)
	r.guard = cronlock.New(r.locker, r.cron, opts...)
	r.cron.Start()
	t.Cleanup(func() { r.stop(t) })
	return r
}

func (r *replica) stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := r.guard.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
	_ = r.locker.Shutdown(ctx) // what could not be released expires
}

// add adds a job that takes d.
func (r *replica) add(t testing.TB, spec, name string, d time.Duration, opts ...cronlock.Option) cron.EntryID {
	t.Helper()
	id, err := r.guard.AddFunc(spec, name, r.work(d), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return cron.EntryID(id)
}

func (r *replica) work(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		defer r.j.begin(ctx, r.name)()
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// job is one for the cron's AddJob and Schedule.
func (r *replica) job(name string, work func(context.Context) error) cron.Job {
	j, err := r.guard.Job(name, work)
	if err != nil {
		panic(err)
	}
	return j
}

// logTo has slog write into a buffer until the test ends, which is not to be parallel.
func logTo(t *testing.T) *syncBuffer {
	t.Helper()
	before, logged := slog.Default(), &syncBuffer{}
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(logged, nil)))
	return logged
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
