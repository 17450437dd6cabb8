// Asynq pays out from accounts. Of all tasks for one account, one runs at a time, on any number of servers.
//
//	go run ./examples/asynq
//
// It enqueues three payouts for each of two accounts and prints when each begins and ends. Payouts of one account never
// overlap, payouts of different accounts do. It runs until Ctrl-C. Redis is embedded (miniredis), unless REDIS_ADDR names
// one. In that case start the program twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// queue keeps the example apart from everything else in your Redis.
const queue = "holdfast_example_asynq"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" { // a Redis inside this process, to try it out
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true) // leases expire as time goes by
		if err := server.Start(); err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}

	// A task that finds its account busy is deferred: it frees its worker at once, and comes back when the account is free.
	// WithBusy sets another policy than Defer.
	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"))
	mux := asynq.NewServeMux()
	mux.Handle("payout", guard.Wrap(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return payout(ctx, task, out)
	})))
	// With guard.Config, asynq counts a deferred task neither as failed nor as retried.
	server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{
		Concurrency: 4, Queues: map[string]int{queue: 1}, LogLevel: asynq.ErrorLevel,
	}))
	if err := server.Start(mux); err != nil {
		return err
	}
	client := asynq.NewClientFromRedisClient(rdb)
	for i := range 6 {
		payload := fmt.Appendf(nil, `{"account_id": %d, "amount": %d}`, i%2, i)
		_, enqueueErr := client.Enqueue(asynq.NewTask("payout", payload), asynq.Queue(queue))
		err = errors.Join(err, enqueueErr)
	}
	if err == nil {
		<-ctx.Done()
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	server.Shutdown() // before the Locker, whose locks the handlers hold
	return errors.Join(err, locker.Shutdown(patience))
}

// payout takes as long as a bank does. ctx is the lock's context: when the lock is lost it ends, and the work must end too.
func payout(ctx context.Context, task *asynq.Task, out io.Writer) error {
	lock := holdfast.Held(ctx)[0]
	fmt.Fprintf(out, "begin %s: %s, token %d\n", lock.Key(), task.Payload(), lock.Token())
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fmt.Fprintf(out, "end   %s: %s\n", lock.Key(), task.Payload())
	return nil
}
