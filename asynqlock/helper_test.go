package asynqlock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// queue is that of the tests.
const queue = "default"

// shop is a Redis with tasks, and what the workers on it do.
type shop struct {
	t         testing.TB
	client    func() *redis.Client
	inspector *asynq.Inspector
	tasks     *asynq.Client
	lease     time.Duration // of one that is to end before long

	mu     sync.Mutex
	live   map[string]int
	most   int // runs of one account at the same time
	runs   []string
	errs   []error // what ErrorHandler saw
	events []event
}

func newShop(t testing.TB, client func() *redis.Client) *shop {
	rdb := client()
	return &shop{
		t: t, client: client, lease: time.Second, live: map[string]int{},
		inspector: asynq.NewInspectorFromRedisClient(rdb), tasks: asynq.NewClientFromRedisClient(rdb),
	}
}

// bubble runs fn in virtual time, with a server of its own.
func bubble(t *testing.T, fn func(s *shop)) {
	t.Helper()
	bubbleWith(t, func(s *shop, _ *servertest.Bubble) { fn(s) })
}

// everywhere runs fn in a bubble, and on a real Redis.
func everywhere(t *testing.T, fn func(s *shop)) {
	t.Helper()
	t.Run("bubble", func(t *testing.T) { bubble(t, fn) })
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t)
		s := newShop(t, func() *redis.Client { return server.Client() })
		s.lease = 5 * time.Second // of a machine that may be busy
		fn(s)
	})
}

func bubbleWith(t *testing.T, fn func(s *shop, b *servertest.Bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := servertest.NewBubble(t)
		fn(newShop(t, func() *redis.Client { return b.Client() }), b)
	})
}

func (s *shop) locker(opts ...holdfast.Option) *holdfast.Locker {
	s.t.Helper()
	l, err := holdfast.New(s.client(), opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Shutdown(ctx); err != nil {
			s.t.Errorf("a lock was not released: %v", err)
		}
	})
	return l
}

// event is what a hook is told, and which one.
type event struct {
	kind string
	asynqlock.Event
	last bool // the task has no retries left
}

// traceTo tells one function of all hooks.
func traceTo(report func(event)) *asynqlock.Trace {
	hook := func(kind string) func(context.Context, asynqlock.Event) {
		return func(ctx context.Context, e asynqlock.Event) {
			retried, _ := asynq.GetRetryCount(ctx)
			limit, ok := asynq.GetMaxRetry(ctx)
			report(event{kind, e, ok && retried >= limit})
		}
	}
	return &asynqlock.Trace{
		Deferred: hook("deferred"), Skipped: hook("skipped"), Failed: hook("failed"), Lost: hook("lost"),
		Unreleased: hook("unreleased"), Unlocked: hook("unlocked"), Unnamed: hook("unnamed"),
		Enqueued: hook("enqueued"), Elsewhere: hook("elsewhere"), Missed: hook("missed"),
	}
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

// guard is that of the tests: by account, with every event kept.
func (s *shop) guard(l *holdfast.Locker, opts ...asynqlock.Option) *asynqlock.Guard {
	return asynqlock.New(l, "account", asynqlock.Field("account"), append([]asynqlock.Option{s.trace()}, opts...)...)
}

func (s *shop) trace() asynqlock.Option {
	return asynqlock.WithTrace(traceTo(func(e event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}))
}

// serve starts a server that runs work under g.
func (s *shop) serve(g *asynqlock.Guard, work func(context.Context, *asynq.Task) error, configure ...func(*asynq.Config)) *asynq.Server {
	s.t.Helper()
	cfg := asynq.Config{
		LogLevel: asynq.FatalLevel, TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 200 * time.Millisecond, Concurrency: 10,
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.errs = append(s.errs, err)
		}),
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
	}
	for _, c := range configure {
		c(&cfg)
	}
	server := asynq.NewServerFromRedisClient(s.client(), g.Config(cfg))
	mux := asynq.NewServeMux()
	mux.Use(g.Wrap)
	mux.HandleFunc("pay", func(ctx context.Context, t *asynq.Task) error {
		defer s.begin(t)()
		return work(ctx, t)
	})
	if err := server.Start(mux); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(server.Shutdown)
	return server
}

// begin notes that a run has begun, and returns what notes its end.
func (s *shop) begin(t *asynq.Task) (end func()) {
	account := accountOf(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, account)
	s.live[account]++
	s.most = max(s.most, s.live[account])
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.live[account]--
	}
}

func accountOf(t *asynq.Task) string {
	var p struct{ Account json.RawMessage }
	_ = json.Unmarshal(t.Payload(), &p)
	return string(p.Account)
}

func pay(account int) *asynq.Task {
	return asynq.NewTask("pay", fmt.Appendf(nil, `{"account": %d}`, account))
}

func (s *shop) enqueue(task *asynq.Task, opts ...asynq.Option) *asynq.TaskInfo {
	s.t.Helper()
	info, err := s.tasks.Enqueue(task, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return info
}

// until waits for something to come true, and looks often enough to say when.
func (s *shop) until(what string, true func() bool) {
	s.t.Helper()
	s.look(20*time.Millisecond, what, true)
}

func (s *shop) look(every time.Duration, what string, true func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !true(); time.Sleep(every) {
		if time.Now().After(end) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.t.Fatalf("%s: not in time; runs %q, errors %v, events %v", what, s.runs, s.errs, s.events)
		}
	}
}

func (s *shop) ran() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}

// of counts the events of a kind.
func (s *shop) of(k string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.kind == k {
			n++
		}
	}
	return n
}

// queued is what is in the queue, archived tasks included.
func (s *shop) queued() asynq.QueueInfo {
	s.t.Helper()
	q, err := s.inspector.GetQueueInfo(queue)
	if err != nil {
		s.t.Fatal(err)
	}
	return *q
}

// empty waits until nothing is left to do. Each look is several scripts.
func (s *shop) empty() {
	s.t.Helper()
	s.look(250*time.Millisecond, "an empty queue", func() bool {
		q := s.queued()
		return q.Size-q.Archived-q.Completed == 0
	})
}

// hold takes the lock of an account as somebody else would, until release. Any goroutine of the test may call it.
func (s *shop) hold(l *holdfast.Locker, account int) (release func()) {
	s.t.Helper()
	lock, err := l.Acquire(context.Background(), holdfast.Key("account", fmt.Sprint(account)))
	if err != nil {
		s.t.Error(err)
		return func() {}
	}
	return func() {
		s.t.Helper()
		if err := lock.Release(context.Background()); err != nil {
			s.t.Error(err)
		}
	}
}

// check judges what every test wants: no overlap, and ErrorHandler and the counts know of so many failures. asynq also counts
// the deferrals of tasks without retries left.
func (s *shop) check(failed, archived int) {
	s.t.Helper()
	q := s.queued()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most > 1 {
		s.t.Errorf("%d runs of an account at the same time", s.most)
	}
	counted := failed + s.counted()
	if len(s.errs) != failed || q.FailedTotal != counted || q.Archived != archived {
		s.t.Errorf("got %d errors, %d failed, %d archived, want %d, %d and %d; errors %v, events %v",
			len(s.errs), q.FailedTotal, q.Archived, failed, counted, archived, s.errs, s.events)
	}
}

// counted is how many deferrals asynq has counted as failures. s.mu is held.
func (s *shop) counted() (n int) {
	for _, e := range s.events {
		if e.kind == "deferred" && e.last {
			n++
		}
	}
	return n
}

// often is how many times something is repeated: a few in the normal run, more in a soak.
func often(few, many int) int {
	if os.Getenv("HOLDFAST_SOAK") != "" {
		return many
	}
	return few
}

func succeed(context.Context, *asynq.Task) error { return nil }

var errHandler = errors.New("the handler failed")
