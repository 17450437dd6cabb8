package asynqlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// BenchmarkHotKey has a server of 10 workers run many tasks of one key, of 10 ms each, among tasks of keys of their own: in
// front of a backlog that never gets shorter, and in front of a few. It tells when the last one of each kind has run, and how
// long the hot ones worked, which is more than 10 ms each on a busy machine.
func BenchmarkHotKey(b *testing.B) {
	const hot = -1
	for name, c := range map[string]struct {
		hot, cold int
		standing  bool
	}{
		"20 before a standing backlog of 1500": {20, 1500, true},
		"500 before 100":                       {500, 100, false},
	} {
		for policy, opts := range map[string][]asynqlock.Option{
			"plain": nil,
			"defer": {asynqlock.WithBusy(asynqlock.Defer())},
			"wait":  {asynqlock.WithBusy(asynqlock.Wait(200 * time.Millisecond))},
		} {
			b.Run(name+"/"+policy, func(b *testing.B) {
				for b.Loop() {
					rdb := servertest.Redis(b).Client()
					client := asynq.NewClientFromRedisClient(rdb)
					var g *asynqlock.Guard
					if opts != nil {
						g = asynqlock.New(benchLocker(b, rdb), "account", asynqlock.Field("account"), opts...)
					}
					enqueue := func(account int) {
						if _, err := client.Enqueue(pay(account)); err != nil {
							b.Error(err)
						}
					}
					for range c.hot {
						enqueue(hot)
					}
					for i := range c.cold {
						enqueue(i)
					}
					var hotLeft, coldLeft, fresh, work atomic.Int64
					hotLeft.Store(int64(c.hot))
					coldLeft.Store(int64(c.cold))
					hotDone, coldDone := make(chan struct{}), make(chan struct{})
					began := time.Now()
					stop := benchServer(b, rdb, g, func(_ context.Context, t *asynq.Task) error {
						start := time.Now()
						time.Sleep(10 * time.Millisecond)
						switch {
						case accountOf(t) == "-1":
							work.Add(int64(time.Since(start)))
							if hotLeft.Add(-1) == 0 {
								close(hotDone)
							}
						case c.standing:
							enqueue(c.cold + int(fresh.Add(1)))
						case coldLeft.Add(-1) == 0:
							close(coldDone)
						}
						return nil
					})
					if !c.standing {
						<-coldDone
						b.ReportMetric(time.Since(began).Seconds(), "cold-s")
					}
					<-hotDone
					b.ReportMetric(time.Since(began).Seconds(), "hot-s")
					b.ReportMetric(time.Duration(work.Load()).Seconds(), "work-s")
					stop()
				}
			})
		}
	}
}
