package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

// A wrapper's constructor runs with cron's mutex held, on which a look at the entries would wait for ever.
func TestJobMadeInAConstructorIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, newJournal())
		var said []string
		r.rechain(func(inner cron.Job) cron.Job {
			j, err := r.guard.Wrap("every job", inner)
			if err != nil {
				said = append(said, err.Error())
				return inner
			}
			return j
		})
		for range 2 {
			if _, err := r.cron.AddFunc("@hourly", func() {}); err != nil {
				t.Fatal(err)
			}
		}
		if len(said) != 2 || !strings.Contains(said[1], "jobs to AddJob") {
			t.Errorf("got %q", said)
		}
	})
}

// Cron is like a fork of robfig/cron, netresearch/go-cron for example, where another method than Schedule holds the mutex
// and calls the constructors.
type Cron struct {
	*cron.Cron
	locked, done chan struct{}
}

func (c *Cron) ScheduleJob(construct func()) {
	go c.Schedule(cron.Every(time.Hour), cron.FuncJob(func() {})) // its constructor waits, with the mutex held
	<-c.locked
	defer close(c.done)
	cron.NewChain(func(inner cron.Job) cron.Job {
		construct()
		return inner
	}).Then(cron.FuncJob(func() {}))
}

func TestJobMadeInAConstructorOfAForkIsRefused(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // which nothing here asks
	defer rdb.Close()
	l, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	fork := &Cron{locked: make(chan struct{}), done: make(chan struct{})}
	first := true
	fork.Cron = cron.New(cron.WithChain(func(inner cron.Job) cron.Job {
		if !first {
			fork.locked <- struct{}{}
			<-fork.done
		}
		first = false
		return inner
	}))
	g := cronlock.New(l, fork.Cron)
	if _, err := g.AddFunc("@hourly", "job", func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	said := make(chan error, 1)
	go fork.ScheduleJob(func() {
		_, err := g.Wrap("job", cron.FuncJob(func() {}))
		said <- err
	})
	select {
	case err := <-said:
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "wrapper's constructor") {
			t.Errorf("got %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the constructor waits for the mutex that is held around it")
	}
}

// Names of all kinds, with and without a prefix, are names of their own.
func TestNames(t *testing.T) {
	names := []string{"a b", "a:b", "{a}b", "{a}", "a", "Übung 作业", "%s", "a\nb", strings.Repeat("n", 480)}
	for _, prefix := range []string{"", "app:", "{app}:"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				for range 2 {
					r := newReplica(t, b, j)
					l, err := holdfast.New(r.rdb, holdfast.WithPrefix(prefix))
					if err != nil {
						t.Fatal(err)
					}
					defer l.Shutdown(context.Background())
					r.guard = cronlock.New(l, r.cron, cronlock.WithTrace(j.trace()))
					defer r.guard.Stop(context.Background())
					for _, name := range names {
						r.add(t, "*/10 * * * * *", name, time.Millisecond)
					}
				}
				pass(21 * time.Second)
				runs := map[string]int{}
				for _, e := range j.of("ran") {
					runs[e.Name]++
				}
				for _, name := range names {
					if runs[name] != 2 || !b.Redis.Exists("cronlock:spec:"+prefix+holdfast.Key("cron", name)) {
						t.Errorf("%q ran %d times, keys %q", name, runs[name], b.Redis.Keys())
					}
				}
				if len(j.of("failed"))+len(j.of("late"))+len(j.of("differs")) > 0 {
					t.Errorf("%v", j)
				}
			})
		})
	}
}

// Two Guards of one Locker that have jobs of one name on one cron would share their ticks out.
func TestNameTwiceOnOneCron(t *testing.T) {
	for name, c := range map[string]struct {
		prefix string
		fails  bool
	}{"one locker": {"", true}, "another locker": {"other:", false}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				j := newJournal()
				r := newReplica(t, b, j)
				l := r.locker
				if c.prefix != "" {
					var err error
					if l, err = holdfast.New(r.rdb, holdfast.WithPrefix(c.prefix)); err != nil {
						t.Fatal(err)
					}
					defer l.Shutdown(context.Background())
				}
				r.add(t, "*/10 * * * * *", "job", 0)
				r.guard = cronlock.New(l, r.cron, cronlock.WithTrace(j.trace()))
				r.add(t, "*/10 * * * * *", "job", 0)
				pass(11 * time.Second)
				failed := j.of("failed")
				if c.fails && (j.total() > 0 || len(failed) != 2 || !errors.Is(failed[0].Err, holdfast.ErrInvalid)) || !c.fails && j.total() != 2 {
					t.Errorf("%v", j)
				}
			})
		})
	}
}

// On a quorum each tick runs once too, with a node away; and not without a majority.
func TestRedLock(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		nodes := []*servertest.Bubble{b, servertest.NewBubble(t), servertest.NewBubble(t)}
		j := newJournal()
		for i := range 3 {
			var clients []*redis.Client
			for _, n := range nodes {
				clients = append(clients, n.Client())
			}
			l, err := redlock.New(clients, redlock.WithNodeTimeout(300*time.Millisecond)) // no room for it in the lease of a second's job
			if err != nil {
				t.Fatal(err)
			}
			r := &replica{name: fmt.Sprint(i), locker: l, cron: cron.New(cron.WithParser(parser), cron.WithLocation(time.UTC)), j: j}
			r.guard = cronlock.New(l, r.cron, cronlock.WithTrace(j.trace()))
			r.cron.Start()
			t.Cleanup(func() { r.stop(t) })
			r.add(t, "*/10 * * * * *", "job", time.Millisecond)
			r.add(t, "*/2 * * * * *", "short", time.Millisecond)
			if i == 0 {
				r.add(t, "* * * * * *", "shorter", time.Millisecond)
			}
		}
		runs := func() map[string]int {
			n := map[string]int{}
			for _, e := range j.of("ran") {
				n[e.Name]++
			}
			return n
		}
		pass(20*time.Second + 800*time.Millisecond)
		nodes[2].Down()
		pass(20 * time.Second)
		if got := runs(); got["job"] != 4 || got["short"] != 20 || got["shorter"] != 40 {
			t.Errorf("%v", got)
		}
		nodes[1].Down()
		pass(20 * time.Second)
		if got := runs(); got["job"] != 4 || len(j.of("late")) == 0 || !errors.Is(j.of("late")[0].Err, holdfast.ErrUnavailable) {
			t.Errorf("without a majority: %v", got)
		}
		nodes[1].Up()
		nodes[2].Up()
	})
}

// Options of the lock add up, the job's win over the Guard's and both over the lease that the Guard chooses; jobs do not
// share theirs; and how long is waited is the Policy's affair.
func TestLockOptions(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		ttl := cronlock.WithLock(holdfast.WithTTL(8 * time.Second))
		r := newReplica(t, b, j, ttl, ttl, ttl, cronlock.WithLock(holdfast.WithTTL(9*time.Second), holdfast.WithWait(time.Hour)), ttl)
		seen := map[string]string{}
		for _, name := range []string{"a", "b", "c"} {
			_, err := r.guard.AddFunc("*/10 * * * * *", name, func(ctx context.Context) error {
				state, err := r.locker.Inspect(ctx, holdfast.Key("cron", name))
				if left := time.Until(holdfast.Held(ctx)[0].Deadline()); left < 7*time.Second {
					t.Errorf("%s: a lease of %v", name, left)
				}
				j.mu.Lock()
				defer j.mu.Unlock()
				seen[name] = state.Label
				return err
			}, cronlock.WithLock(holdfast.WithLabel("of-"+name)))
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := r.rdb.Set(t.Context(), "cron:c", "somebody", 0).Err(); err != nil {
			t.Fatal(err)
		}
		pass(10*time.Second + 500*time.Millisecond)
		j.mu.Lock()
		got := fmt.Sprint(seen)
		j.mu.Unlock()
		if got != "map[a:of-a b:of-b]" || len(j.of("skipped")) != 1 {
			t.Errorf("got %s, %v", got, j)
		}
	})
}

// A job that runs another one has both locks there, and its own tick and name afterwards; it cannot run itself.
func TestJobThatRunsAnother(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		j := newJournal()
		r := newReplica(t, b, j)
		say := func(ctx context.Context) (s string) {
			name, tick, _ := cronlock.Tick(ctx)
			s = name + tick.UTC().Format(" 05")
			for _, l := range holdfast.Held(ctx) {
				s += " " + l.Key()
			}
			return s
		}
		var inner, outer string
		if _, err := r.guard.AddFunc("@yearly", "inner", func(ctx context.Context) error {
			inner = say(ctx)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.guard.AddFunc("*/10 * * * * *", "outer", func(ctx context.Context) error {
			time.Sleep(2 * time.Second)
			if err := r.guard.RunNow(ctx, "outer"); !errors.Is(err, holdfast.ErrSelfDeadlock) {
				t.Errorf("itself: %v", err)
			}
			err := r.guard.RunNow(ctx, "inner")
			outer = say(ctx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		pass(13 * time.Second)
		if inner != "inner 12 cron:inner cron:outer" || outer != "outer 10 cron:outer" || len(j.of("ran")) != 2 {
			t.Errorf("%q in %q: %v", inner, outer, j)
		}
	})
}
