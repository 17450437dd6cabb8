package asynqlock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// The lock of a killed worker is free long before asynq runs its task again, so that others do not wait for that.
func TestKilledWorkerFreesItsKey(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	rdb := server.Client()
	s := newShop(t, func() *redis.Client { return rdb })
	c := &crew{t: t, addr: server.Addr(), dir: t.TempDir(), killed: map[string]int64{}}
	s.enqueue(asynq.NewTask("hang", []byte(`{"account": 42}`)), asynq.TaskID("hangs"))
	m := c.start()
	begun := func(journal, id string) bool {
		return slices.ContainsFunc(c.read(journal), func(l line) bool { return l.kind == "begin" && l.id == id })
	}
	s.until("the run", func() bool { return begun(m.journal, "hangs") })
	c.kill(m)
	killed := time.Now()
	again := c.start()
	s.enqueue(pay(42), asynq.TaskID("next"))
	s.until("the next run", func() bool { return begun(again.journal, "next") })
	if took := time.Since(killed); took > 9*time.Second {
		t.Errorf("the key was busy for %v, and the lease is 5 s", took)
	}
	lease, err := rdb.ZScore(t.Context(), "asynq:{"+queue+"}:lease", "hangs").Result()
	if left := time.Until(time.Unix(int64(lease), 0)); err != nil || left < 5*time.Second {
		t.Errorf("asynq gives the dead worker %v more, %v", left, err)
	}
	c.leave(again)
}

// A Redis that is killed and comes back with its data takes nothing along.
func TestRedisRestarts(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.Durable...)
	s := newShop(t, func() *redis.Client { return server.Client() })
	for range 2 {
		s.serve(s.guard(s.locker()), func(context.Context, *asynq.Task) error {
			time.Sleep(200 * time.Millisecond)
			return nil
		})
	}
	for i := range 30 {
		s.enqueue(pay(i%3), asynq.MaxRetry(i%2*25))
	}
	for range 2 {
		time.Sleep(700 * time.Millisecond)
		server.Kill()
		time.Sleep(300 * time.Millisecond)
		server.Start()
	}
	orphans := 0
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		q, err := s.inspector.GetQueueInfo(queue)
		if err == nil && q.Size == q.Archived && s.ran()+q.Archived >= 30 {
			break
		}
		switch passed := time.Since(began); {
		case passed > 2*time.Minute:
			t.Fatalf("not at its end: %d runs, %+v, %v", s.ran(), q, err)
		case passed > 20*time.Second && orphans == 0:
			// asynq took one from the queue, and Redis was killed before it answered. asynq gives it a minute and a half,
			// and looks when a server starts.
			orphans = s.expire(t)
			s.serve(s.guard(s.locker()), func(context.Context, *asynq.Task) error { return nil })
		}
	}
	q := s.queued()
	if s.mu.Lock(); s.most > 1 || len(s.errs) > 0 || q.FailedTotal > orphans+s.counted() || q.Archived > orphans {
		t.Errorf("%d runs at the same time, errors %v, %d of %d orphans failed, %d archived", s.most, s.errs, q.FailedTotal, orphans, q.Archived)
	}
	s.mu.Unlock()
}

// expire ends asynq's leases of the tasks that are active, and returns how many those are.
func (s *shop) expire(t *testing.T) int {
	t.Helper()
	tasks, err := s.inspector.ListActiveTasks(queue)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		past := redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: task.ID}
		if err := s.client().ZAddXX(t.Context(), "asynq:{"+queue+"}:lease", past).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return len(tasks)
}

// On a Redis Cluster, one key of a script at a time is enough.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, "--cluster-enabled", "yes")
	if err := server.Client().Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil {
		t.Skip(err) // Redis 7
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	t.Cleanup(func() { _ = rdb.Close() })
	s := newShop(t, func() *redis.Client { return server.Client() })
	s.until("the cluster", func() bool { return rdb.Set(t.Context(), "x", 1, time.Second).Err() == nil })
	l, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Shutdown(context.Background()) })
	s.serve(s.guard(l, byTenant), func(context.Context, *asynq.Task) error {
		time.Sleep(500 * time.Millisecond)
		return nil
	})
	began := time.Now()
	for i := range 4 {
		s.enqueue(payOf([]string{"a", "b", ""}[i%3]), asynq.MaxRetry(i%2*25))
	}
	s.until("all runs", func() bool { return s.ran() == 4 })
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the fourth began after %v: nobody was woken", took)
	}
	s.empty()
	s.check(0, 0)
}

// Ten ticks, three replicas, a real Redis.
func TestSchedulersOnARealRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	s := newShop(t, func() *redis.Client { return server.Client() })
	var k ticks
	s.work(&k)
	for i := range 3 {
		skew := time.Duration(i) * 300 * time.Millisecond
		// Half of the period is soon over on a machine that has other things to do.
		within := asynqlock.WithLateness(20 * time.Second)
		register(t, s.schedule(&k, asynqlock.Ahead(skew), within), "report", "@every 1s")
	}
	s.until("five ticks", func() bool { return len(k.runs()) >= 5 })
	ran := k.runs()
	slices.Sort(ran)
	if len(slices.Compact(slices.Clone(ran))) != len(ran) {
		t.Errorf("ran %q", ran)
	}
	for _, e := range k.all() {
		if e.kind == "missed" {
			t.Errorf("got %+v", e)
		}
	}
	if n := len(k.of("elsewhere")); n < 5 {
		t.Errorf("only %d ticks were elsewhere: the replicas did not compete", n)
	}
}
