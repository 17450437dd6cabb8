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
	"github.com/holdfast-go/holdfast/core/tick"
)

// A Scheduler has a time zone, a bound on lateness, and hooks for metrics.
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

// A Scheduler runs alongside the replica's servers: register its entries, start it, and shut it down when the replica stops.
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
		default: // nobody waits for later ticks
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

// Shut down the Scheduler first, then the Locker that it claims ticks with.
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
	scheduler.Shutdown() // waits for ticks that are being enqueued
	fmt.Println(locker.Shutdown(ctx))
	// Output:
	// <nil>
	// <nil>
}

// In a process that does nothing else, Run blocks until SIGINT or SIGTERM, like that of asynq's own Scheduler.
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
	time.AfterFunc(100*time.Millisecond, func() { // something stops the process
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Signal(os.Interrupt)
	})
	fmt.Println(scheduler.Run())
	// Output: <nil>
}

// The clocks of the replicas are kept within two seconds of the clock of Redis. A claim is kept for a day.
func ExampleWithClaim() {
	rdb, closeAll := newExampleRedis()
	defer closeAll()
	locker, err := holdfast.New(rdb)
	if err != nil {
		panic(err)
	}
	scheduler := asynqlock.NewScheduler(locker, asynqlock.WithClaim(tick.WithWindow(24*time.Hour, 2*time.Second)))
	fmt.Println(scheduler.Register("0 6 * * *", "invoices", asynq.NewTask("invoices", nil)))
	// Output: <nil>
}

// A handler reads the tick that its task was enqueued for.
func ExampleTick() {
	_ = asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if name, at, ok := asynqlock.Tick(ctx, task); ok {
			fmt.Println(name, "of", at.Format(time.RFC3339))
		}
		return nil
	})
}
