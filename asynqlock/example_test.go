package asynqlock_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// newExampleRedis starts a Redis server inside the process.
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
		payout <- holdfast.Held(ctx)[0].Token() // ctx ends when the lock is lost: pass it on
		return nil
	})

	beats := make(chan string, 100)
	beat := func(_ context.Context, task *asynq.Task) error {
		beats <- task.Type()
		return nil
	}

	guard := asynqlock.New(locker, "account", asynqlock.Field("account_id"))
	server := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{Concurrency: 10}))
	mux := asynq.NewServeMux()
	mux.Handle("payout", guard.Wrap(handler))
	mux.HandleFunc("heartbeat", beat) // has no account
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

	// In the same program: a task without an account needs no Guard.
	scheduler := asynqlock.NewScheduler(locker)
	err = scheduler.Register("@every 1s", "heartbeat", asynq.NewTask("heartbeat", nil))
	if err != nil {
		panic(err)
	}
	if err := scheduler.Start(); err != nil {
		panic(err)
	}
	defer scheduler.Shutdown()
	fmt.Println("ran:", <-beats)
	// Output:
	// one after the other: true
	// ran: heartbeat
}

// The Scheduler runs on every replica. One of them enqueues each tick.
func ExampleScheduler() {
	rdb, closeAll := newExampleRedis() // redis.NewClient(...)
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	defer locker.Shutdown(context.Background())

	scheduler := asynqlock.NewScheduler(locker)
	err = scheduler.Register("@every 1s", "heartbeat", asynq.NewTask("heartbeat", nil))
	if err != nil {
		panic(err)
	}
	if err := scheduler.Start(); err != nil {
		panic(err)
	}
	defer scheduler.Shutdown()

	inspector := asynq.NewInspectorFromRedisClient(rdb)
	var tasks []*asynq.TaskInfo
	for len(tasks) == 0 {
		time.Sleep(100 * time.Millisecond)
		tasks, _ = inspector.ListPendingTasks("default") // an error until the queue exists
	}
	name, _, _ := strings.Cut(tasks[0].ID, "@") // the ID is the name, "@" and the time
	fmt.Println(tasks[0].Type, "of", name)
	// Output: heartbeat of heartbeat
}
