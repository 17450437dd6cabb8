// Scheduler runs a schedule of asynq tasks on every replica, and each tick is enqueued once.
//
//	go run ./examples/scheduler
//
// Its worker handles a heartbeat every second until Ctrl-C, and prints a line for each. Redis is embedded (miniredis),
// unless REDIS_ADDR names one. In that case start the program several times: one of them prints each heartbeat. If you end
// one, the others go on.
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
const queue = "holdfast_example_scheduler"

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

	// The worker handles what any replica has enqueued. It takes no lock.
	mux := asynq.NewServeMux()
	mux.HandleFunc("heartbeat", func(ctx context.Context, task *asynq.Task) error {
		if name, tick, ok := asynqlock.Tick(ctx, task); ok {
			fmt.Fprintf(out, "%s of %s\n", name, tick.UTC().Format(time.TimeOnly))
		}
		return nil
	})
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Queues: map[string]int{queue: 1}, LogLevel: asynq.ErrorLevel})
	if err := server.Start(mux); err != nil {
		return err
	}

	// This Scheduler replaces asynq's. Replicas claim the entry's ticks by its name, so it must be the same on all of them.
	scheduler := asynqlock.NewScheduler(locker)
	err = scheduler.Register("@every 1s", "heartbeat", asynq.NewTask("heartbeat", nil), asynq.Queue(queue))
	if err == nil {
		err = scheduler.Start()
	}
	if err == nil {
		<-ctx.Done()
	}
	scheduler.Shutdown()
	server.Shutdown()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, locker.Shutdown(patience))
}
