package asynqlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// benchServer starts a server, with a Guard unless g is nil.
func benchServer(b *testing.B, rdb *redis.Client, g *asynqlock.Guard, handler asynq.HandlerFunc) (stop func()) {
	b.Helper()
	cfg := asynq.Config{Concurrency: 10, TaskCheckInterval: time.Millisecond, LogLevel: asynq.FatalLevel}
	var h asynq.Handler = handler
	if g != nil {
		cfg, h = g.Config(cfg), g.Wrap(h)
	}
	server := asynq.NewServerFromRedisClient(rdb, cfg)
	if err := server.Start(h); err != nil {
		b.Fatal(err)
	}
	return server.Shutdown
}

func benchLocker(b *testing.B, rdb *redis.Client) *holdfast.Locker {
	b.Helper()
	l, err := holdfast.New(rdb)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Shutdown(context.Background()) })
	return l
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkThroughput has a server of 10 workers run tasks that do nothing, each with a key of its own, by turns with a
// Guard and without.
func BenchmarkThroughput(b *testing.B) {
	const tasks = 2000
	rdb := servertest.Redis(b).Client()
	g := asynqlock.New(benchLocker(b, rdb), "account", asynqlock.Field("account"))
	client := asynq.NewClientFromRedisClient(rdb)
	var plain, guarded []float64
	for b.Loop() {
		for _, guard := range []*asynqlock.Guard{nil, g} {
			for i := range tasks {
				if _, err := client.Enqueue(pay(i)); err != nil {
					b.Fatal(err)
				}
			}
			var left atomic.Int32
			left.Store(tasks)
			done := make(chan struct{})
			began := time.Now()
			stop := benchServer(b, rdb, guard, func(context.Context, *asynq.Task) error {
				if left.Add(-1) == 0 {
					close(done)
				}
				return nil
			})
			<-done
			rate := tasks / time.Since(began).Seconds()
			stop()
			if guard == nil {
				plain = append(plain, rate)
			} else {
				guarded = append(guarded, rate)
			}
		}
	}
	b.ReportMetric(median(plain), "plain/s")
	b.ReportMetric(median(guarded), "guarded/s")
	b.ReportMetric(median(guarded)/median(plain), "ratio")
}

// BenchmarkOrder has four servers of 10 workers, as README configures them, run short tasks of 100 keys, and of one, by turns with
// WithOrder and without. All of them share this machine's processors with Redis.
func BenchmarkOrder(b *testing.B) {
	for _, c := range []struct {
		keys, tasks int
		takes       time.Duration
	}{
		{100, 10_000, 2 * time.Millisecond}, {100, 10_000, 10 * time.Millisecond}, {100, 10_000, 20 * time.Millisecond},
		{1, 100, 2 * time.Millisecond}, {1, 100, 20 * time.Millisecond},
	} {
		b.Run(fmt.Sprintf("%d keys, %v", c.keys, c.takes), func(b *testing.B) {
			var rates [2][]float64
			for b.Loop() {
				for i, opts := range [][]asynqlock.Option{nil, {asynqlock.WithOrder()}} {
					rates[i] = append(rates[i], orderRate(b, c.keys, c.tasks, c.takes, opts...))
				}
			}
			b.ReportMetric(median(rates[0]), "plain/s")
			b.ReportMetric(median(rates[1]), "ordered/s")
			b.ReportMetric(median(rates[1])/median(rates[0]), "ratio")
		})
	}
}

// orderRate returns how many tasks a second are run once they are enqueued.
func orderRate(b *testing.B, keys, tasks int, takes time.Duration, opts ...asynqlock.Option) float64 {
	server := servertest.Redis(b)
	var guards []*asynqlock.Guard
	var clients []*redis.Client
	for range 4 {
		rdb := server.Client()
		clients = append(clients, rdb)
		guards = append(guards, asynqlock.New(benchLocker(b, rdb), "account", asynqlock.Field("account"), opts...))
	}
	client := asynq.NewClientFromRedisClient(clients[0])
	for i := range tasks {
		var err error
		if len(opts) > 0 {
			_, err = guards[0].Enqueue(b.Context(), client, pay(i%keys))
		} else {
			_, err = client.Enqueue(pay(i % keys))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	var left atomic.Int32
	left.Store(int32(tasks))
	done := make(chan struct{})
	began := time.Now()
	for i, g := range guards {
		server := asynq.NewServerFromRedisClient(clients[i], g.Config(asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel}))
		handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			time.Sleep(takes)
			if left.Add(-1) == 0 {
				close(done)
			}
			return nil
		})
		if err := server.Start(g.Wrap(handler)); err != nil {
			b.Fatal(err)
		}
		defer server.Shutdown()
	}
	<-done
	return float64(tasks) / time.Since(began).Seconds()
}

// BenchmarkNextRun is the time from the end of a task to the beginning of the next one of its key, by policy; and from
// the release by something other than a task.
func BenchmarkNextRun(b *testing.B) {
	for name, policy := range map[string]asynqlock.Policy{"defer": asynqlock.Defer(), "wait": asynqlock.Wait(time.Minute)} {
		b.Run(name, func(b *testing.B) {
			rdb := servertest.Redis(b).Client()
			g := asynqlock.New(benchLocker(b, rdb), "account", asynqlock.Field("account"), asynqlock.WithBusy(policy))
			client := asynq.NewClientFromRedisClient(rdb)
			began, ended := make(chan time.Time, 2), make(chan time.Time, 2)
			defer benchServer(b, rdb, g, func(context.Context, *asynq.Task) error {
				began <- time.Now()
				time.Sleep(50 * time.Millisecond) // the other one is deferred, or waits, by then
				ended <- time.Now()
				return nil
			})()
			var all []float64
			for b.Loop() {
				for range 2 {
					if _, err := client.Enqueue(pay(1)); err != nil {
						b.Fatal(err)
					}
				}
				<-began
				end := <-ended
				all = append(all, float64((<-began).Sub(end).Microseconds())/1000)
				<-ended
			}
			b.ReportMetric(median(all), "p50-ms")
			b.ReportMetric(all[len(all)*99/100], "p99-ms")
		})
	}
	b.Run("defer, released by others", func(b *testing.B) {
		rdb := servertest.Redis(b).Client()
		l := benchLocker(b, rdb)
		g := asynqlock.New(l, "account", asynqlock.Field("account"))
		client := asynq.NewClientFromRedisClient(rdb)
		began := make(chan time.Time, 1)
		defer benchServer(b, rdb, g, func(context.Context, *asynq.Task) error {
			began <- time.Now()
			return nil
		})()
		var all []float64
		for b.Loop() {
			lock, err := l.Acquire(b.Context(), holdfast.Key("account", "1"))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := client.Enqueue(pay(1)); err != nil {
				b.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			end := time.Now()
			if err := lock.Release(b.Context()); err != nil {
				b.Fatal(err)
			}
			all = append(all, (<-began).Sub(end).Seconds())
		}
		b.ReportMetric(median(all), "p50-s")
	})
}
