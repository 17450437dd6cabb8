package asynqlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// newExampleRedis is a Redis inside the process.
func newExampleRedis() (rdb *redis.Client, closeAll func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

func Example() {
	rdb, closeAll := newExampleRedis() // redis.NewClient(...)
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	defer locker.Shutdown(context.Background())

	payout := make(chan int64)
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		payout <- holdfast.Held(ctx)[0].Token() // the context is the lock's: pass it on
		return nil
	})

	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"))
	server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel}))
	mux := asynq.NewServeMux()
	mux.Use(guard.Middleware)
	mux.Handle("payout", handler)
	if err := server.Start(mux); err != nil {
		panic(err)
	}
	defer server.Shutdown()

	client := asynq.NewClientFromRedisClient(rdb)
	for range 2 {
		if _, err := client.Enqueue(asynq.NewTask("payout", []byte(`{"account_id": 42}`))); err != nil {
			panic(err)
		}
	}
	first, second := <-payout, <-payout
	fmt.Println("one after the other:", first < second)
	// Output: one after the other: true
}

// On every replica: one of them enqueues each tick.
func ExampleScheduler() {
	rdb, closeAll := newExampleRedis() // redis.NewClient(...)
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	defer locker.Shutdown(context.Background())

	enqueued := make(chan asynqlock.TickEvent, 1)
	scheduler := asynqlock.NewScheduler(locker, asynqlock.ScheduleReport(func(e asynqlock.TickEvent) { enqueued <- e }))
	if err := scheduler.Register("heartbeat", "@every 1s", asynq.NewTask("heartbeat", nil)); err != nil {
		panic(err)
	}
	scheduler.Start()
	e := <-enqueued
	fmt.Println(e.Kind, e.Name, e.Task.ID == fmt.Sprintf("heartbeat@%d", e.Tick.Unix()))

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := scheduler.Shutdown(ctx); err != nil {
		panic(err)
	}
	// Output: enqueued heartbeat true
}
