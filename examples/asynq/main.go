// Asynq pays out from accounts: of all tasks for one account, on however many servers, one runs at a time. And a
// heartbeat is enqueued once each second, although every replica has the Scheduler.
//
//	go run ./examples/asynq
//
// It runs until Ctrl-C. Redis is embedded (miniredis), unless REDIS_ADDR names one: then start the program twice.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// queue keeps the example apart from what else is in a Redis of yours: a server fails the tasks that it has no handler for.
const queue = "holdfast_example_asynq"

func run(ctx context.Context, out io.Writer) error {
	rdb, closeRedis, err := backend.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}

	// Defer, the default, gives the worker back at once when an account is busy: the task comes back when the one that has
	// the account ends. Wait keeps the worker and the order of arrival. Here a task waits a little and gives way then, so that
	// one busy account cannot occupy all workers for long.
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"),
		asynqlock.WithBusy(asynqlock.Wait(200*time.Millisecond)))
	mux := asynq.NewServeMux()
	// Wrap is for one type of task. mux.Use(guard.Wrap) is for all types, and the heartbeat has no account.
	mux.Handle("payout", guard.Wrap(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return payout(ctx, task, out)
	})))
	mux.HandleFunc("heartbeat", func(ctx context.Context, task *asynq.Task) error {
		if name, tick, ok := asynqlock.Tick(ctx, task); ok {
			fmt.Fprintf(out, "%s of %s\n", name, tick.UTC().Format(time.TimeOnly))
		}
		return nil
	})
	// guard.Config has asynq count a task that gives way neither as failed nor as retried.
	server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{
		Concurrency: 4, Queues: map[string]int{queue: 1}, LogLevel: asynq.ErrorLevel,
	}))
	if err := server.Start(mux); err != nil {
		return err
	}

	scheduler := asynqlock.NewScheduler(locker)
	err = scheduler.Register("@every 1s", "heartbeat", asynq.NewTask("heartbeat", nil), asynq.Queue(queue))
	if err == nil {
		err = scheduler.Start()
	}
	if err == nil {
		err = enqueue(asynq.NewClientFromRedisClient(rdb))
	}
	if err == nil {
		<-ctx.Done()
	}

	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	scheduler.Shutdown()
	server.Shutdown() // before the Locker, whose locks its handlers have
	return errors.Join(err, locker.Shutdown(patience))
}

type order struct {
	Account int `json:"account_id"`
	Amount  int `json:"amount"`
}

func enqueue(client *asynq.Client) error {
	for amount := 1; amount <= 3; amount++ {
		for _, account := range []int{7, 42} {
			payload, err := json.Marshal(order{account, amount})
			if err != nil {
				return err
			}
			if _, err := client.Enqueue(asynq.NewTask("payout", payload), asynq.Queue(queue)); err != nil {
				return err
			}
		}
	}
	return nil
}

// payout takes as long as a bank does. ctx is the lock's: it ends when the lock is lost, and then the work must end.
func payout(ctx context.Context, task *asynq.Task, out io.Writer) error {
	var o order
	if err := json.Unmarshal(task.Payload(), &o); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	lock := holdfast.Held(ctx)[0]
	fmt.Fprintf(out, "begin %s: %d, token %d\n", lock.Key(), o.Amount, lock.Token())
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fmt.Fprintf(out, "end   %s: %d\n", lock.Key(), o.Amount)
	return nil
}
