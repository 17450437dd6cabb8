package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// sequence records the tasks of each account in the order in which their handlers began, by their IDs.
type sequence struct {
	mu     sync.Mutex
	begins map[string][]string
}

func (q *sequence) begin(ctx context.Context, t *asynq.Task) (id string) {
	id, _ = asynq.GetTaskID(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.begins == nil {
		q.begins = map[string][]string{}
	}
	q.begins[accountOf(t)] = append(q.begins[accountOf(t)], id)
	return id
}

func (q *sequence) of(account int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.begins[fmt.Sprint(account)])
}

// line enqueues tasks of an account by g, with these numbers, and returns their IDs.
func (s *shop) line(g *asynqlock.Guard, account, from, to int, opts ...asynq.Option) (ids []string) {
	s.t.Helper()
	for i := from; i < to; i++ {
		id := fmt.Sprintf("%d-%03d", account, i)
		ids = append(ids, s.place(g, pay(account), append(opts, asynq.TaskID(id))...))
	}
	return ids
}

func (s *shop) place(g *asynqlock.Guard, task *asynq.Task, opts ...asynq.Option) string {
	s.t.Helper()
	info, err := g.Enqueue(context.Background(), s.tasks, task, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return info.ID
}

// runsIn fails the test unless the tasks of an account have begun in that order. One may have begun several times in a row.
func (q *sequence) runsIn(t testing.TB, account int, want []string) {
	t.Helper()
	if got := slices.Compact(q.of(account)); !slices.Equal(got, want) {
		t.Errorf("account %d: %q ran, want %q", account, got, want)
	}
}

// Two servers with ten workers each run the tasks of each account in their order, whether handlers fail or not.
func TestOrder(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]float64{"no failures": 0, "failures": 0.1} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(s *shop) {
				const accounts, n = 5, 40
				var q sequence
				var guards []*asynqlock.Guard
				for range 2 {
					guards = append(guards, s.guard(s.locker(), asynqlock.WithOrder()))
				}
				want := make([][]string, accounts)
				for i := range n {
					for a := range accounts {
						id := fmt.Sprintf("%d-%d", a, i)
						want[a] = append(want[a], s.place(guards[i%2], pay(a), asynq.TaskID(id)))
					}
				}
				for _, g := range guards {
					s.serve(g, func(ctx context.Context, task *asynq.Task) error {
						q.begin(ctx, task)
						time.Sleep(rand.N(10 * time.Millisecond))
						if rand.Float64() < failing {
							return errHandler
						}
						return nil
					})
				}
				began := time.Now()
				s.empty()
				s.t.Logf("took %v, %d runs, %d deferrals", time.Since(began), s.ran(), s.of("deferred"))
				for a := range accounts {
					q.runsIn(s.t, a, want[a])
				}
			})
		})
	}
}

// A server is cut off while it has a task: asynq gives up on it after a minute, and the tasks behind wait for the second run.
func TestOrderWhenAServerIsLost(t *testing.T) {
	t.Parallel()
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		var q sequence
		lost := b.Client()
		link := b.Link(lost)
		g := s.guard(s.locker(), asynqlock.WithOrder())
		want := s.line(g, 42, 0, 5)
		l, err := holdfast.New(lost)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Shutdown(context.Background()) }()
		cut := make(chan struct{})
		far := s.guard(l, asynqlock.WithOrder())
		server := asynq.NewServerFromRedisClient(lost, far.Config(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second}))
		hang := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			q.begin(ctx, task)
			link.CutUp()
			close(cut)
			<-ctx.Done()
			return ctx.Err()
		})
		if err := server.Start(far.Wrap(hang)); err != nil {
			t.Fatal(err)
		}
		<-cut
		s.serve(g, func(ctx context.Context, task *asynq.Task) error { q.begin(ctx, task); return nil })
		time.Sleep(30 * time.Second)
		q.runsIn(t, 42, want[:1])
		s.look(time.Second, "all runs", func() bool { return len(q.of(42)) == 6 })
		q.runsIn(t, 42, want)
		server.Shutdown()
		link.Heal()
	})
}

// Whatever ends a task lets the next one go, at once if its handler did, and soon if somebody did it by hand.
func TestOrderGoesOn(t *testing.T) {
	t.Parallel()
	inspect := func(f func(s *shop) error) func(s *shop) {
		return func(s *shop) {
			if err := f(s); err != nil {
				s.t.Error(err)
			}
		}
	}
	for name, c := range map[string]struct {
		fails  error // what the handler of the first says
		opts   []asynq.Option
		byHand func(s *shop)
		quiet  time.Duration // before byHand
		within time.Duration
		want   []string
	}{
		"success":   {within: time.Second},
		"retention": {opts: []asynq.Option{asynq.Retention(time.Hour)}, within: time.Second},
		"exhausted": {fails: errHandler, opts: []asynq.Option{asynq.MaxRetry(0)}, within: time.Second},
		"skipped":   {fails: fmt.Errorf("no: %w", asynq.SkipRetry), within: time.Second},
		"revoked":   {fails: asynq.RevokeTask, within: time.Second},
		"retried": {fails: errHandler, quiet: time.Minute, within: 3*time.Minute + 5*time.Second, byHand: func(s *shop) {
			time.Sleep(150 * time.Second)
			if n := s.ran(); n != 1 {
				s.t.Errorf("%d runs before the retry", n)
			}
		}},
		"deleted": {fails: errHandler, quiet: 150 * time.Second, within: 31 * time.Second, byHand: inspect(func(s *shop) error {
			return s.inspector.DeleteTask(queue, "42-000")
		})},
		"archived": {fails: errHandler, quiet: 150 * time.Second, within: 31 * time.Second, byHand: inspect(func(s *shop) error {
			return s.inspector.ArchiveTask(queue, "42-000")
		})},
		"two deleted": {fails: errHandler, within: time.Second, want: []string{"42-000", "42-002", "42-003", "newcomer"}, byHand: func(s *shop) {
			for _, id := range []string{"42-000", "42-001"} {
				if err := s.inspector.DeleteTask(queue, id); err != nil {
					s.t.Error(err)
				}
			}
			s.enqueue(pay(42), asynq.TaskID("newcomer")) // finds out
		}},
		"run by hand": {fails: errHandler, within: time.Second, byHand: inspect(func(s *shop) error {
			return s.inspector.RunTask(queue, "42-000")
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(s *shop) {
				var q sequence
				g := s.guard(s.locker(), asynqlock.WithOrder())
				begins := make(chan struct{})
				var once sync.Once
				s.serve(g, func(ctx context.Context, task *asynq.Task) (err error) {
					if q.begin(ctx, task) == "42-000" {
						<-begins
						once.Do(func() { err = c.fails })
					}
					return err
				}, func(c *asynq.Config) {
					c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 4 * time.Minute }
				})
				want := s.line(g, 42, 0, 1, c.opts...)
				s.until("the first", func() bool { return s.ran() == 1 })
				want = append(want, s.line(g, 42, 1, 4)...)
				s.until("the others are deferred", func() bool { return s.queued().Retry == 3 })
				time.Sleep(10 * time.Second) // the next one looks by itself ever more rarely
				close(begins)
				ended := time.Now()
				if c.byHand != nil {
					s.until("it is to be retried", func() bool { return s.queued().Retry == 4 })
					time.Sleep(c.quiet)
					ended = time.Now()
					c.byHand(s)
				}
				if c.want != nil {
					want = c.want
				}
				s.look(10*time.Millisecond, "the last", func() bool {
					all := q.of(42)
					return all[len(all)-1] == want[len(want)-1] || time.Since(ended) > c.within
				})
				q.runsIn(t, 42, want)
			})
		})
	}
}

// A call that crashes between the enqueueing and the place, or whose place is lost, leaves a task that runs, and nobody waits for
// more. A place that was left behind by a task is not that of a later one with its ID.
func TestOrderAfterACallThatCrashed(t *testing.T) {
	t.Parallel()
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		var q sequence
		g := s.guard(s.locker(), asynqlock.WithOrder())
		ids := []string{s.enqueue(pay(42), asynq.TaskID("crashed")).ID}
		ids = append(ids, s.line(g, 42, 0, 2)...)

		rdb := b.Client()
		b.Link(rdb).OnCommand(func(args []string) servertest.Verdict {
			if len(args) > 4 && strings.HasPrefix(args[4], "asynqlock:order:") {
				return servertest.LoseRequestAndClose
			}
			return servertest.Pass
		})
		info, err := s.guard(s.locker(), asynqlock.WithOrder(), asynqlock.WithRedis(rdb)).Enqueue(context.Background(), s.tasks, pay(42), asynq.TaskID("lost"))
		if err == nil || info == nil || info.ID != "lost" {
			t.Errorf("got %+v, %v, want the task and an error", info, err)
		}
		ids = append(ids, "lost")
		ids = append(ids, s.line(g, 42, 2, 4)...)

		if err := s.inspector.DeleteTask(queue, "42-002"); err != nil {
			t.Fatal(err)
		}
		s.place(g, pay(42), asynq.TaskID("42-002"))
		s.serve(g, func(ctx context.Context, task *asynq.Task) error { q.begin(ctx, task); return nil })
		s.empty()
		got := q.of(42)
		if sorted := slices.Sorted(slices.Values(got)); !slices.Equal(sorted, slices.Sorted(slices.Values(ids))) {
			t.Errorf("%q ran, want all of %q", got, ids)
		}
		placed := slices.DeleteFunc(got, func(id string) bool { return id == "crashed" || id == "lost" })
		if want := []string{"42-000", "42-001", "42-003", "42-002"}; !slices.Equal(placed, want) {
			t.Errorf("%q ran, want %q", placed, want)
		}
		if n, err := g.Enqueue(context.Background(), s.tasks, asynq.NewTask("pay", nil)); err == nil {
			t.Errorf("a task without a key: %v", n)
		}
		if _, err := s.guard(s.locker()).Enqueue(context.Background(), s.tasks, pay(42)); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("without WithOrder: %v", err)
		}
		for _, opt := range []asynq.Option{asynq.ProcessIn(time.Hour), asynq.Group("g")} { // they keep nobody waiting
			if s.place(g, pay(7), opt); s.client().Exists(context.Background(), "asynqlock:order:{default}:account:7").Val() != 0 {
				t.Errorf("a place for %v", opt)
			}
		}
	})
}

// The tasks of a key have an order in each queue, and a paused queue keeps no other waiting.
func TestOrderOfTwoQueues(t *testing.T) {
	t.Parallel()
	bubble(t, func(s *shop) {
		var q sequence
		g := s.guard(s.locker(), asynqlock.WithOrder())
		low := s.line(g, 42, 0, 10, asynq.Queue("low"))
		crit := s.line(g, 42, 10, 20, asynq.Queue("crit"))
		if err := s.inspector.PauseQueue("low"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			s.serve(g, func(ctx context.Context, task *asynq.Task) error {
				q.begin(ctx, task)
				time.Sleep(10 * time.Millisecond)
				return nil
			}, func(c *asynq.Config) { c.Queues = map[string]int{"low": 1, "crit": 5} })
		}
		s.until("crit", func() bool { return s.ran() == 10 })
		q.runsIn(t, 42, crit)
		more := s.line(g, 42, 20, 30, asynq.Queue("crit"))
		if err := s.inspector.UnpauseQueue("low"); err != nil {
			t.Fatal(err)
		}
		s.until("all", func() bool { return s.ran() == 30 })
		isLow := func(id string) bool { return slices.Contains(low, id) }
		all := q.of(42)
		if got := slices.DeleteFunc(slices.Clone(all), func(id string) bool { return !isLow(id) }); !slices.Equal(got, low) {
			t.Errorf("of low %q ran, want %q", got, low)
		}
		if got := slices.DeleteFunc(all, isLow); !slices.Equal(got, append(crit, more...)) {
			t.Errorf("of crit %q ran", got)
		}
		if s.most > 1 {
			t.Errorf("%d runs at a time", s.most)
		}
	})
}

// A task that ends wakes none of a queue that was paused meanwhile, and so the next one of the other queue.
func TestOrderBesideAPausedQueue(t *testing.T) {
	t.Parallel()
	const accounts = 8 // whose queues are drawn by lot
	bubble(t, func(s *shop) {
		var q sequence
		ends := make(chan struct{})
		g := s.guard(s.locker(), asynqlock.WithOrder())
		s.serve(g, func(ctx context.Context, task *asynq.Task) error {
			if id := q.begin(ctx, task); strings.HasSuffix(id, "-000") {
				<-ends
			}
			return nil
		}, func(c *asynq.Config) { c.Queues, c.Concurrency = map[string]int{"low": 1, "crit": 5}, 3*accounts })
		for account := range accounts {
			s.line(g, account, 0, 1, asynq.Queue("crit"))
		}
		s.until("one of each", func() bool { return s.ran() == accounts })
		for account := range accounts {
			s.line(g, account, 100, 102, asynq.Queue("low"))
			s.line(g, account, 1, 4, asynq.Queue("crit"))
		}
		s.until("the others wait", func() bool { return s.of("deferred") >= 5*accounts })
		time.Sleep(time.Minute)
		if err := s.inspector.PauseQueue("low"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // what asynq had taken is back
		began := time.Now()
		close(ends)
		s.until("crit", func() bool { return s.ran() == 4*accounts })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("those of the other queue took %v", took)
		}
		if err := s.inspector.UnpauseQueue("low"); err != nil {
			t.Fatal(err)
		}
		s.until("low", func() bool { return s.ran() == 6*accounts })
	})
}

// An order costs a task one command more when it is enqueued, and one more when it runs.
func TestCommandsOfAnOrder(t *testing.T) {
	t.Parallel()
	for ordered, want := range map[bool][2]int64{false: {0, 1}, true: {1, 2}} {
		bubbleWith(t, func(s *shop, b *servertest.Bubble) {
			const n = 50
			var asked atomic.Int64 // commands of the Guard that are not those of its lock
			g, enqueue := s.guard(s.locker()), func(i int) { s.enqueue(pay(i)) }
			if ordered {
				g = s.guard(s.locker(), asynqlock.WithOrder())
				enqueue = func(i int) { s.place(g, pay(i)) }
			}
			enqueue(0)
			s.serve(g, succeed)
			s.empty() // the scripts are loaded
			for _, l := range b.Links() {
				l.OnCommand(func(args []string) servertest.Verdict {
					if strings.Contains(strings.Join(args, " "), " asynqlock:") {
						asked.Add(1)
					}
					return servertest.Pass
				})
			}
			if err := s.inspector.PauseQueue(queue); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				enqueue(i)
			}
			enqueues := asked.Swap(0)
			if err := s.inspector.UnpauseQueue(queue); err != nil {
				t.Fatal(err)
			}
			s.empty()
			time.Sleep(time.Second)
			if runs := asked.Load(); enqueues != want[0]*n || runs != want[1]*n {
				t.Errorf("ordered %v: %d tasks cost %d commands when they are enqueued, and %d when they run, want %d and %d each", ordered, n, enqueues, runs, want[0], want[1])
			}
		})
	}
}

// idle reports that nothing has left the queue for 5 s.
func (s *shop) idle(left *int, since *time.Time) bool {
	if n := s.queued().Size; n != *left {
		*left, *since = n, time.Now()
	}
	return time.Since(*since) > 5*time.Second
}

// Four servers, processes of their own, are killed while they run tasks of many accounts, and handlers fail: the tasks of each account
// run in the order of their enqueueing.
func TestOrderUnderFire(t *testing.T) {
	t.Parallel()
	n, accounts := often(400, 10_000), often(20, 100)
	redisServer := servertest.Redis(t)
	rdb := redisServer.Client()
	s := newShop(t, func() *redis.Client { return rdb })
	g := s.guard(s.locker(), asynqlock.WithOrder())
	want := map[string][]string{}
	for i := range n {
		account := rand.N(accounts)
		id := s.place(g, pay(account), asynq.TaskID(fmt.Sprint("task-", i)), asynq.MaxRetry(1000))
		want[fmt.Sprint(account)] = append(want[fmt.Sprint(account)], id)
	}
	c := &crew{t: t, addr: redisServer.Addr(), dir: t.TempDir(), killed: map[string]int64{}, order: true}
	members := []*member{c.start(), c.start(), c.start(), c.start()}
	began, kills, left, since := time.Now(), 0, 0, time.Now()
	for s.queued().Size > 0 {
		if time.Sleep(time.Second); time.Since(began) > 10*time.Minute {
			t.Fatalf("not done: %+v", s.queued())
		}
		i := rand.N(len(members))
		var orphans []string
		if kills < often(2, 20) {
			orphans = c.kill(members[i])
			kills++
		} else { // one may have been killed before it could write down what it had
			c.leave(members[i])
			if s.idle(&left, &since) {
				tasks, err := s.inspector.ListActiveTasks(queue)
				if err != nil {
					t.Fatal(err)
				}
				for _, task := range tasks {
					orphans = append(orphans, task.ID)
				}
			}
		}
		// asynq gives a silent worker a minute, and looks when a server starts.
		for _, id := range orphans {
			past := redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id}
			if err := rdb.ZAddXX(t.Context(), "asynq:{"+queue+"}:lease", past).Err(); err != nil {
				t.Fatal(err)
			}
		}
		members[i] = c.start()
	}
	for _, m := range members {
		c.leave(m)
	}
	took := time.Since(began)
	_, runs, lost := c.judge()
	begins := map[string][]line{}
	for _, journal := range c.journals {
		for _, l := range c.read(journal) {
			if l.kind == "begin" {
				begins[l.account] = append(begins[l.account], l)
			}
		}
	}
	for account, ids := range want {
		slices.SortFunc(begins[account], func(a, b line) int { return int(a.at - b.at) })
		var got []string
		for _, l := range begins[account] {
			got = append(got, l.id)
		}
		if got = slices.Compact(got); !slices.Equal(got, ids) {
			t.Errorf("account %s: %q ran, want %q", account, got, ids)
		}
	}
	t.Logf("%d tasks, %d runs, %d locks lost, %d kills, in %v", n, runs, lost, kills, took.Round(time.Second))
}
