package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
)

// In a time zone of its own, with hooks for the metrics.
func ExampleNewScheduler() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	scheduler := asynqlock.NewScheduler(locker,
		asynqlock.WithLocation(time.FixedZone("UTC+1", 3600)),
		asynqlock.WithLateness(10*time.Second),
		asynqlock.WithTrace(&asynqlock.Trace{
			Enqueued: func(_ context.Context, e asynqlock.Event) { fmt.Println(e.Name, "enqueued as", e.Info.ID) },
			Missed:   func(_ context.Context, e asynqlock.Event) { fmt.Println(e.Name, "missed:", e.Err) },
		}))
	fmt.Println(scheduler.Register("0 6 * * *", "invoices", asynq.NewTask("invoices", nil), asynq.Queue("low")))
	// Output: <nil>
}

func ExampleScheduler_Register() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	scheduler := asynqlock.NewScheduler(locker)

	task := asynq.NewTask("invoices", nil)
	fmt.Println(scheduler.Register("@daily", "invoices", task))
	fmt.Println(errors.Is(scheduler.Register("@hourly", "invoices", task), holdfast.ErrInvalid)) // the name is taken
	fmt.Println(errors.Is(scheduler.Register("at six", "reports", task), holdfast.ErrInvalid))
	fmt.Println(scheduler.Unregister("invoices"))
	// Output:
	// <nil>
	// true
	// true
	// <nil>
}

// Beside the servers of the replica: entries first, and then it goes on until the replica stops.
func ExampleScheduler_Start() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	enqueued := make(chan string, 1)
	scheduler := asynqlock.NewScheduler(locker, asynqlock.WithTrace(&asynqlock.Trace{Enqueued: func(_ context.Context, e asynqlock.Event) {
		select {
		case enqueued <- e.Name:
		default: // nobody waits for the next ones
		}
	}}))
	if err := scheduler.Register("@every 1s", "heartbeat", asynq.NewTask("heartbeat", nil)); err != nil {
		panic(err)
	}
	if err := scheduler.Start(); err != nil {
		panic(err)
	}
	defer scheduler.Shutdown()
	fmt.Println("enqueued", <-enqueued)
	// Output: enqueued heartbeat
}

// The ticks end first, then the Locker that they are claimed with.
func ExampleScheduler_Shutdown() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	scheduler := asynqlock.NewScheduler(locker)
	fmt.Println(scheduler.Start())

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	scheduler.Shutdown() // waits for what is being enqueued
	fmt.Println(locker.Shutdown(ctx))
	// Output:
	// <nil>
	// <nil>
}

// A process that does nothing else: Run blocks until SIGINT or SIGTERM, as asynq's own does.
func ExampleScheduler_Run() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	scheduler := asynqlock.NewScheduler(locker)
	if err := scheduler.Register("0 6 * * *", "invoices", asynq.NewTask("invoices", nil)); err != nil {
		panic(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { // the one who stops the process
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Signal(os.Interrupt)
	})
	fmt.Println(scheduler.Run())
	// Output: <nil>
}

// Replicas whose clocks are kept within two seconds of that of Redis, and a claim that is kept for a day.
func ExampleWithClaim() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	scheduler := asynqlock.NewScheduler(locker, asynqlock.WithClaim(holdfast.WithTickWindow(24*time.Hour, 2*time.Second)))
	fmt.Println(scheduler.Register("0 6 * * *", "invoices", asynq.NewTask("invoices", nil)))
	// Output: <nil>
}

// The tick that a task was enqueued for, in its handler.
func ExampleTick() {
	_ = asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if name, tick, ok := asynqlock.Tick(ctx, task); ok {
			fmt.Println(name, "of", tick.Format(time.RFC3339))
		}
		return nil
	})
}

// The ID to be idempotent by, also where a task on its last retry went on as a new one.
func ExampleOrigin() {
	_ = asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		fmt.Println("payment", asynqlock.Origin(ctx, task))
		return nil
	})
}
