package asynqlock_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

const (
	workerEnv = "HOLDFAST_ASYNQLOCK_WORKER" // set in a process that is an asynq server: the Redis, and the journal
	accounts  = 40
	impatient = time.Second // the timeout of every task
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		if err := worker(strings.Split(spec, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "6") // those with a real Redis mostly wait
	}
	debug.SetGCPercent(400) // most of it is garbage of miniredis' Lua
	os.Exit(m.Run())
}

// worker is a server with the Guard, whose third word says whether with WithOrder, until its standard input ends. The journal has a line when a task was dequeued and
// when it was let go, when a run began and when it ended, and when a lock was lost.
func worker(spec []string) error {
	journal, err := os.OpenFile(spec[1], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	write := func(kind string, ctx context.Context, t *asynq.Task, more ...any) {
		id, _ := asynq.GetTaskID(ctx)
		line := fmt.Sprintln(append([]any{kind, time.Now().UnixNano(), id, accountOf(t)}, more...)...)
		if _, err := journal.WriteString(line); err != nil {
			panic(err)
		}
	}
	rdb := redis.NewClient(&redis.Options{Addr: spec[0], PoolSize: 40})
	locker, err := holdfast.New(rdb, holdfast.WithTTL(5*time.Second))
	if err != nil {
		return err
	}
	opts := []asynqlock.Option{
		asynqlock.WithBusy(asynqlock.Defer().MaxDelay(time.Second)),
		asynqlock.WithTrace(&asynqlock.Trace{Lost: func(ctx context.Context, e asynqlock.Event) { write("lost", ctx, e.Task) }}),
	}
	if spec[2] != "" {
		opts = []asynqlock.Option{asynqlock.WithOrder(), opts[1]}
	}
	g := asynqlock.New(locker, "account", asynqlock.Field("account"), opts...)
	server := asynq.NewServerFromRedisClient(rdb, g.Config(asynq.Config{
		LogLevel: asynq.FatalLevel, Concurrency: 20, TaskCheckInterval: 10 * time.Millisecond, ShutdownTimeout: 200 * time.Millisecond,
		DelayedTaskCheckInterval: 200 * time.Millisecond,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Second },
	}))
	mux := asynq.NewServeMux()
	mux.Use(func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
			write("got", ctx, t)
			defer write("put", ctx, t)
			return next.ProcessTask(ctx, t)
		})
	}, g.Wrap)
	mux.HandleFunc("pay", func(ctx context.Context, t *asynq.Task) (err error) {
		write("begin", ctx, t)
		defer func() { write("end", ctx, t, err == nil && ctx.Err() == nil) }()
		switch n := rand.N(1000); {
		case n < 5:
			time.Sleep(impatient + rand.N(impatient/2)) // and asynq gives it up
		case n < 50:
			return errHandler
		default:
			time.Sleep(rand.N(4 * time.Millisecond))
		}
		return nil
	})
	mux.HandleFunc("hang", func(ctx context.Context, t *asynq.Task) error {
		write("begin", ctx, t)
		select {}
	})
	if err := server.Start(mux); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	server.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return locker.Shutdown(ctx)
}

// crew is the worker processes of a test, and those that were.
type crew struct {
	t        *testing.T
	addr     string
	dir      string
	journals []string
	killed   map[string]int64 // when, by journal
	order    bool             // they have WithOrder
}

type member struct {
	*servertest.Child
	journal string
}

func (c *crew) start() *member {
	c.t.Helper()
	m := &member{journal: filepath.Join(c.dir, strconv.Itoa(len(c.journals)))}
	c.journals = append(c.journals, m.journal)
	mode := ""
	if c.order {
		mode = "order"
	}
	var err error
	if m.Child, err = servertest.StartChild(workerEnv+"="+c.addr+"\n"+m.journal+"\n"+mode, nil); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(m.Kill)
	return m
}

// kill ends a worker in the middle of everything, and returns the tasks that it leaves behind.
func (c *crew) kill(m *member) (orphans []string) {
	c.t.Helper()
	if m.Gone() {
		c.t.Fatal("a worker has ended by itself")
	}
	m.Kill()
	c.killed[m.journal] = time.Now().UnixNano()
	got := map[string]bool{}
	for _, l := range c.read(m.journal) {
		switch l.kind {
		case "got":
			got[l.id] = true
		case "put":
			delete(got, l.id)
		}
	}
	for id := range got {
		orphans = append(orphans, id)
	}
	return orphans
}

func (c *crew) leave(m *member) {
	c.t.Helper()
	if err := m.Leave(time.Minute); err != nil {
		c.t.Errorf("a worker ended with %v", err)
	}
}

type line struct {
	kind        string
	at          int64
	id, account string
	ok          bool
}

func (c *crew) read(journal string) (lines []line) {
	c.t.Helper()
	f, err := os.Open(journal)
	if errors.Is(err, os.ErrNotExist) {
		return nil // killed before it began
	}
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) < 4 {
			continue // the last one of a worker that was killed
		}
		at, _ := strconv.ParseInt(w[1], 10, 64)
		lines = append(lines, line{w[0], at, w[2], w[3], len(w) > 4 && w[4] == "true"})
	}
	return lines
}

// run is one that a journal tells of.
type run struct {
	begin, end int64
}

// judge returns the tasks that have run to a good end, and reports runs of one account that overlap.
func (c *crew) judge() (done map[string]bool, runs, lost int) {
	c.t.Helper()
	done = map[string]bool{}
	byAccount := map[string][]*run{}
	for _, journal := range c.journals {
		open := map[string]*run{} // by account: within a process there is only one, if the lock holds
		for _, l := range c.read(journal) {
			switch l.kind {
			case "begin":
				if open[l.account] != nil {
					c.t.Errorf("account %s runs twice in a process", l.account)
				}
				r := &run{begin: l.at, end: c.killed[journal]}
				open[l.account] = r
				byAccount[l.account] = append(byAccount[l.account], r)
				runs++
			case "end":
				open[l.account].end = l.at
				delete(open, l.account)
				if l.ok {
					done[l.id] = true
				}
			case "lost":
				lost++
			}
		}
	}
	for account, all := range byAccount {
		slices.SortFunc(all, func(a, b *run) int { return int(a.begin - b.begin) })
		for i := range all[1:] {
			if all[i].end > all[i+1].begin {
				c.t.Errorf("account %s: a run began %v before the end of another", account, time.Duration(all[i].end-all[i+1].begin))
			}
		}
	}
	return done, runs, lost
}

// Two servers, processes of their own, work through many tasks while they are killed and restarted, and handlers fail
// and outlive their timeouts: never do two runs of an account overlap, each task runs, and none is archived because its
// account was busy.
func TestServersUnderFire(t *testing.T) {
	t.Parallel()
	n := often(600, 10_000)
	redisServer := servertest.Redis(t)
	rdb := redisServer.Client()
	s := newShop(t, func() *redis.Client { return rdb })
	began := time.Now()
	for i := range n {
		opts := []asynq.Option{asynq.TaskID(fmt.Sprint("task-", i)), asynq.Timeout(impatient), asynq.MaxRetry(1000)}
		if i%10 == 0 {
			opts = append(opts, asynq.MaxRetry(0))
		}
		s.enqueue(pay(rand.N(accounts)), opts...)
	}
	c := &crew{t: t, addr: redisServer.Addr(), dir: t.TempDir(), killed: map[string]int64{}}
	members := []*member{c.start(), c.start()}
	kills, restarts, idle := 0, 0, 0
	for left := -1; ; {
		time.Sleep(500 * time.Millisecond)
		q := s.queued()
		if q.Size == q.Archived {
			break
		}
		if idle++; left != q.Size-q.Archived {
			left, idle = q.Size-q.Archived, 0
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatalf("not done: %+v", q)
		}
		i := rand.N(len(members))
		var orphans []string
		switch {
		case idle > 10: // dequeued by a process that was killed before it could write that down
			tasks, err := s.inspector.ListActiveTasks(queue)
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range tasks {
				orphans = append(orphans, task.ID)
			}
			idle = 0
			fallthrough
		case rand.N(3) == 0:
			c.leave(members[i])
			restarts++
		default:
			orphans = append(orphans, c.kill(members[i])...)
			kills++
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

	done, runs, lost := c.judge()
	archived, err := s.inspector.ListArchivedTasks(queue, asynq.PageSize(n))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range archived {
		done[task.ID] = true
		if strings.Contains(task.LastErr, "elsewhere") || task.MaxRetry > 0 {
			t.Errorf("archived after %d of %d retries: %s", task.Retried, task.MaxRetry, task.LastErr)
		}
	}
	for i := range n {
		if !done[fmt.Sprint("task-", i)] {
			t.Errorf("task %d has not run", i)
		}
	}
	if lost > 0 {
		t.Errorf("%d locks were lost: this machine stood still for a lease", lost)
	}
	if kills == 0 || restarts == 0 {
		t.Logf("only %d kills and %d restarts", kills, restarts)
	}
	t.Logf("%d tasks, %d runs, %d archived by their handlers, %d kills, %d restarts, in %v", n, runs, len(archived), kills, restarts, took.Round(time.Second))
}
