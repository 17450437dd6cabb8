package asynqlock_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/adaptertest"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// A unit of work is a task, until its first run has ended. One that was deferred for an outage comes back after it.
func TestAdapter(t *testing.T) {
	adaptertest.Test(t, adaptertest.Adapter{
		Key: func(name string) string { return holdfast.Key("account", name) },
		Start: func(t testing.TB, l *holdfast.Locker, work func(context.Context, string)) func(context.Context, string) error {
			var runs sync.Map                       // the channel of each task, by its ID
			rdb := servertest.NewBubble(t).Client() // of asynq alone: it goes on when the Locker's Redis does not
			guard := asynqlock.New(l, "account", asynqlock.Field("account"), asynqlock.WithRedis(rdb), asynqlock.WithBusy(asynqlock.Fail()))
			mux := asynq.NewServeMux()
			mux.Use(func(next asynq.Handler) asynq.Handler {
				return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) (err error) {
					err = errors.New("a panic")
					defer func() {
						if end, first := runs.LoadAndDelete(task.ResultWriter().TaskID()); first {
							end.(chan error) <- err
						}
					}()
					err = next.ProcessTask(ctx, task)
					return err
				})
			}, guard.Wrap)
			mux.HandleFunc("pay", func(ctx context.Context, task *asynq.Task) error {
				var p struct{ Account string }
				_ = json.Unmarshal(task.Payload(), &p)
				work(ctx, p.Account)
				return nil
			})
			server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{LogLevel: asynq.FatalLevel, Concurrency: 200}))
			if err := server.Start(mux); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(server.Shutdown)
			client := asynq.NewClientFromRedisClient(rdb)
			return func(_ context.Context, name string) error {
				payload, _ := json.Marshal(map[string]string{"account": name})
				id, end := rand.Text(), make(chan error, 1)
				runs.Store(id, end)
				if _, err := client.Enqueue(asynq.NewTask("pay", payload), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
					return err
				}
				return <-end
			}
		},
	})
}
