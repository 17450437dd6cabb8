package asynqlock_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// listed is what the Inspector says of all entries.
func (s *shop) listed() (all []string) {
	s.t.Helper()
	entries, err := s.inspector.SchedulerEntries()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, fmt.Sprintf("%s %s %s %s %v %d %v", e.ID, e.Spec, e.Task.Type(), e.Task.Payload(), e.Opts, e.Next.Unix(), e.Prev.IsZero()))
	}
	slices.Sort(all)
	return all
}

// asynq's Inspector lists the entries of each replica, in the form that asynq has for its own.
func TestInspectorListsEntries(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		var k ticks
		const period = 100_000 * 60 * 60
		next := (time.Now().Unix()/period + 1) * period
		task := asynq.NewTask("report", []byte(`{"of":"Übung"}`), asynq.MaxRetry(3))
		var replicas []*asynqlock.Scheduler
		var want []string
		for range 2 {
			sch := asynqlock.NewScheduler(s.locker(), asynqlock.WithTrace(traceTo(k.report)))
			if err := sch.Register("@every 100000h", "übung", task, asynq.Queue("low"), asynq.Timeout(time.Minute)); err != nil {
				t.Fatal(err)
			}
			s.start(sch)
			s.t.Cleanup(sch.Shutdown)
			replicas = append(replicas, sch)
			want = append(want, fmt.Sprintf(`übung @every 100000h report {"of":"Übung"} [Queue("low") Timeout(1m0s)] %d true`, next))
		}
		s.until("both are listed", func() bool { return len(s.listed()) == 2 })
		if got := s.listed(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		keys, err := s.client().Keys(context.Background(), "asynq:schedulers:*").Result()
		if err != nil || len(keys) != 2 {
			t.Errorf("got %q, %v", keys, err)
		}
		for _, key := range keys { // one of a replica that dies is not listed for long
			if left := s.client().TTL(context.Background(), key).Val(); left <= 0 || left > 20*time.Second {
				t.Errorf("%s is kept for %v", key, left)
			}
		}
		for _, sch := range replicas {
			sch.Shutdown()
		}
		if got := s.listed(); len(got) > 0 {
			t.Errorf("after Shutdown: %q", got)
		}
	})
}

// What changes is listed soon, an outage included.
func TestInspectorListsWhatChanges(t *testing.T) {
	bubbleWith(t, func(s *shop, b *servertest.Bubble) {
		var k ticks
		sch := s.schedule(&k)
		register(t, sch, "a", "@every 1h")
		register(t, sch, "b", "@every 25s")
		time.Sleep(11 * time.Second)
		if got := len(s.listed()); got != 2 {
			t.Errorf("%d entries are listed", got)
		}
		if err := sch.Unregister("a"); err != nil {
			t.Fatal(err)
		}
		b.Down()
		time.Sleep(time.Minute)
		b.Up()
		time.Sleep(21 * time.Second)
		entries, err := s.inspector.SchedulerEntries()
		if err != nil || len(entries) != 1 || entries[0].ID != "b" || entries[0].Next.Sub(entries[0].Prev) != 25*time.Second || entries[0].Prev.Unix()%25 != 0 {
			t.Errorf("got %+v, %v", entries, err)
		}
	})
}

// A tick that finds the task of the one before it queued is what asynq.Unique is for, and no fault.
func TestUniqueTaskThatIsStillQueued(t *testing.T) {
	logged := logTo(t)
	bubble(t, func(s *shop) {
		var k ticks
		sch := asynqlock.NewScheduler(s.locker(), asynqlock.WithTrace(&asynqlock.Trace{Enqueued: func(_ context.Context, e asynqlock.Event) {
			k.report(event{kind: "enqueued", Event: e})
		}}))
		s.start(sch)
		s.t.Cleanup(sch.Shutdown)
		register(t, sch, "report", "@every 10s", asynq.Unique(time.Hour))
		time.Sleep(65 * time.Second)
		if n := len(k.of("enqueued")); n != 1 {
			t.Errorf("enqueued %d times", n)
		}
	})
	if logged.String() != "" {
		t.Errorf("logged %s", logged)
	}
}
