package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// asInREADME is the configuration that README shows.
func asInREADME(c *asynq.Config) {
	*c = asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel, ErrorHandler: c.ErrorHandler}
}

// The tasks of a key run one after the other without a pause, on one server and on three, and each is deferred once at most:
// also where one takes longer than the next waits for it, and where they end before asynq has found the next.
func TestHotKeyIsNeverIdle(t *testing.T) {
	t.Parallel()
	const n = 60
	for name, c := range map[string]struct {
		takes, tenth time.Duration
		most         time.Duration
	}{
		"short":            {takes: 5 * time.Millisecond, most: 500 * time.Millisecond}, // of 300
		"medium":           {takes: 50 * time.Millisecond, most: 3300 * time.Millisecond},
		"long":             {takes: 500 * time.Millisecond, most: 33 * time.Second},
		"one of them long": {takes: 50 * time.Millisecond, tenth: 450 * time.Millisecond, most: 3700 * time.Millisecond},
	} {
		for _, servers := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d", name, servers), func(t *testing.T) {
				bubble(t, func(s *shop) {
					for range n {
						s.enqueue(pay(42))
					}
					done := make(chan struct{}, n)
					for range servers {
						s.serve(s.guard(s.locker()), func(context.Context, *asynq.Task) error {
							if time.Sleep(c.takes); s.ran() == 10 {
								time.Sleep(c.tenth)
							}
							done <- struct{}{}
							return nil
						}, asInREADME)
					}
					began := time.Now()
					for range n {
						<-done
					}
					if took := time.Since(began); took > c.most || s.of("deferred") > n*6/5 {
						t.Errorf("it took %v, want %v at most; %d deferrals", took, c.most, s.of("deferred"))
					}
					s.check(0, 0)
				})
			})
		}
	}
}

// A task that meets a request, whose end wakes nobody, starts soon after it.
func TestTaskThatMeetsARequest(t *testing.T) {
	t.Parallel()
	for request, most := range map[time.Duration][2]time.Duration{ // the median, and the most
		100 * time.Millisecond: {30 * time.Millisecond, 30 * time.Millisecond},
		time.Second:            {2 * time.Second, 2100 * time.Millisecond},
		10 * time.Second:       {10 * time.Second, 11 * time.Second},
	} {
		t.Run(request.String(), func(t *testing.T) {
			bubble(t, func(s *shop) {
				starts := make(chan time.Time, 1)
				s.serve(s.guard(s.locker()), func(context.Context, *asynq.Task) error {
					starts <- time.Now()
					return nil
				}, asInREADME)
				other := s.locker()
				var waits []time.Duration
				for i := range 5 {
					free := s.hold(other, 42)
					s.enqueue(pay(42))
					time.Sleep(request)
					free()
					freed := time.Now()
					waits = append(waits, (<-starts).Sub(freed))
					s.empty()
					time.Sleep(time.Duration(i) * 230 * time.Millisecond) // at any time of asynq's intervals
				}
				slices.Sort(waits)
				if median, last := waits[len(waits)/2], waits[len(waits)-1]; median > most[0] || last > most[1] {
					t.Errorf("tasks started %v after a request, in the median, and %v at most: want %v", median, last, most)
				}
				s.check(0, 0)
			})
		})
	}
}

// A task that has little of its Timeout left does not spend it on a wait: asynq would count a failure.
func TestShortTimeoutIsNotWaitedAway(t *testing.T) {
	t.Parallel()
	bubble(t, func(s *shop) {
		other := s.locker()
		s.serve(s.guard(s.locker()), succeed, asInREADME)
		for i := range 10 {
			free := s.hold(other, i)
			time.AfterFunc(3*time.Second, free)
			time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second + 880*time.Millisecond + time.Duration(i)*10*time.Millisecond)))
			// With both, asynq ends it with the next second of the clock.
			s.enqueue(pay(i), asynq.Timeout(time.Second), asynq.Deadline(time.Now().Add(time.Hour)))
		}
		time.Sleep(3 * time.Second)
		s.empty()
		s.check(0, 0)
	})
}

// A long line of tasks of one key costs each of them one deferral, and tasks of other keys no time.
func TestBacklogOfOneKey(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint(servers), func(t *testing.T) {
			bubble(t, func(s *shop) {
				hot, span, takes := often(250, 2000), 10*time.Second, 50*time.Millisecond
				var mu sync.Mutex // guards what follows
				hotRuns, sent := 0, map[string]time.Time{}
				var cold []time.Duration
				for range hot {
					s.enqueue(pay(1))
				}
				for range servers {
					s.serve(s.guard(s.locker()), func(_ context.Context, task *asynq.Task) error {
						account := accountOf(task)
						mu.Lock()
						if account == "1" {
							hotRuns++
						} else {
							cold = append(cold, time.Since(sent[account]))
						}
						mu.Unlock()
						time.Sleep(takes)
						return nil
					}, asInREADME)
				}
				for i := range int(span / (100 * time.Millisecond)) {
					time.Sleep(100 * time.Millisecond)
					mu.Lock()
					sent[fmt.Sprint(1000+i)] = time.Now()
					mu.Unlock()
					s.enqueue(pay(1000 + i))
				}
				mu.Lock()
				defer mu.Unlock()
				slices.Sort(cold)
				if ideal := int(span / takes); hotRuns < ideal*95/100 || s.of("deferred") > hot*12/10 || cold[len(cold)-1] > 100*time.Millisecond {
					t.Errorf("%d hot runs, want %d; %d deferrals; cold tasks waited for up to %v", hotRuns, ideal, s.of("deferred"), cold[len(cold)-1])
				}
			})
		})
	}
}

// The tasks of a queue that is paused leave the turn to those of another, and have it again when the queue goes on.
func TestPausedQueueLeavesTheTurn(t *testing.T) {
	t.Parallel()
	bubble(t, func(s *shop) {
		var mu sync.Mutex
		ran := map[string]int{}
		holding, free := make(chan struct{}), make(chan struct{})
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			if id, _ := asynq.GetTaskID(ctx); id == "holder" {
				close(holding)
				<-free
			}
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			name, _ := asynq.GetQueueName(ctx)
			ran[name]++
			return nil
		}, asInREADME, func(c *asynq.Config) { c.Queues = map[string]int{"crit": 6, "low": 1} })
		s.enqueue(pay(42), asynq.Queue("crit"), asynq.TaskID("holder"))
		<-holding
		const n = 30
		for _, name := range []string{"low", "crit"} {
			for range n {
				s.enqueue(pay(42), asynq.Queue(name))
			}
			time.Sleep(300 * time.Millisecond) // those of low are deferred first
		}
		if err := s.inspector.PauseQueue("low"); err != nil {
			t.Fatal(err)
		}
		count := func(name string) int {
			mu.Lock()
			defer mu.Unlock()
			return ran[name]
		}
		close(free)
		began := time.Now()
		s.until("the runs of crit", func() bool { return count("crit") == n+1 })
		if took := time.Since(began); took > 3*time.Second || count("low") > 0 {
			t.Errorf("it took %v; %d runs of low", took, count("low"))
		}
		if err := s.inspector.UnpauseQueue("low"); err != nil {
			t.Fatal(err)
		}
		s.enqueue(pay(42), asynq.Queue("crit")) // its end wakes the next one
		began = time.Now()
		s.until("the runs of low", func() bool { return count("low") == n })
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("low took %v", took)
		}
	})
}

// A task without retries left that found its key busy is the same task all the time: it has its ID, which no other can have,
// and runs once.
func TestDeferredTaskKeepsItsID(t *testing.T) {
	t.Parallel()
	everywhere(t, func(s *shop) {
		t := s.t
		free := s.hold(s.locker(), 42)
		ids := make(chan string, 10)
		s.serve(s.guard(s.locker()), func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			ids <- id
			return nil
		})
		opts := []asynq.Option{asynq.TaskID("invoice"), asynq.MaxRetry(0)}
		s.enqueue(pay(42), opts...)
		s.until("it is back", func() bool { return s.queued().Retry == 1 })
		if info, err := s.inspector.GetTaskInfo(queue, "invoice"); err != nil || info.State != asynq.TaskStateRetry || info.Retried != 0 {
			t.Errorf("got %+v, %v, want it in state retry", info, err)
		}
		if _, err := s.tasks.Enqueue(pay(42), opts...); !errors.Is(err, asynq.ErrTaskIDConflict) {
			t.Errorf("a second one of its ID: got %v", err)
		}
		free()
		s.until("the run", func() bool { return s.ran() == 1 })
		s.empty()
		if id := <-ids; id != "invoice" || len(ids) > 0 || s.queued().Archived != 0 {
			t.Errorf("%q ran, and %d more", id, len(ids))
		}
	})
}
