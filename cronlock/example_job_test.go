package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/robfig/cron/v3"
)

func ExampleGuard_AddFunc() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	c := cron.New()
	guard := cronlock.New(locker, c)

	invoices := func(context.Context) error { return nil }
	_, err := guard.AddFunc("0 6 * * *", "invoices", invoices)
	fmt.Println(err)
	_, err = guard.AddFunc("0 7 * * *", "invoices", invoices) // the name is taken
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output:
	// <nil>
	// true
}

// Options of New apply to all jobs. Here no job begins more than ten seconds after its tick, and a tick waits for up to five
// seconds if an earlier run still holds the lock.
func ExampleNew() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	c := cron.New(cron.WithLocation(time.UTC)) // the same on all replicas
	guard := cronlock.New(locker, c, cronlock.WithLateness(10*time.Second), cronlock.WithBusy(cronlock.Wait(5*time.Second)))

	_, err := guard.AddFunc("0 6 * * *", "invoices", func(context.Context) error { return nil })
	fmt.Println(err, len(c.Entries()))
	// Output: <nil> 1
}

// Job makes a job for a cron.Schedule.
func ExampleGuard_Job() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	c := cron.New()
	guard := cronlock.New(locker, c)

	job, err := guard.Job("clean-up", func(ctx context.Context) error {
		fmt.Println("cleaning up under", holdfast.Held(ctx)[0].Key())
		return nil
	})
	if err != nil {
		panic(err)
	}
	c.Schedule(cron.Every(time.Hour), job)
	fmt.Println(guard.RunNow(context.Background(), "clean-up"))
	// Output:
	// cleaning up under cron:clean-up
	// <nil>
}

// RunNow runs a job by hand, in addition to its ticks. It does not run alongside a run on another replica.
func ExampleGuard_RunNow() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())
	if _, err := guard.AddFunc("0 6 * * *", "invoices", func(context.Context) error { return errors.New("no paper") }); err != nil {
		panic(err)
	}
	ctx := context.Background()

	fmt.Println(guard.RunNow(ctx, "invoices"))
	fmt.Println(errors.Is(guard.RunNow(ctx, "reports"), holdfast.ErrInvalid))
	// Output:
	// no paper
	// true
}

func ExampleGuard_Stop() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	c := cron.New()
	guard := cronlock.New(locker, c)
	c.Start()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Println(guard.Stop(ctx)) // then call locker.Shutdown(ctx)
	// Output: <nil>
}

func ExampleTick() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())
	_, _ = guard.AddFunc("0 6 * * *", "invoices", func(ctx context.Context) error {
		name, at, _ := cronlock.Tick(ctx) // 06:00:00, or with RunNow the moment of the call
		fmt.Println(name, !at.IsZero())
		return nil
	})
	fmt.Println(guard.RunNow(context.Background(), "invoices"))
	// Output:
	// invoices true
	// <nil>
}

func ExampleWithTrace() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New(), cronlock.WithTrace(&cronlock.Trace{
		Ran:    func(e cronlock.Event) { fmt.Println(e.Name, "ran") },
		Failed: func(e cronlock.Event) { fmt.Println(e.Name, "failed:", e.Err) },
	}))
	_, _ = guard.AddFunc("0 6 * * *", "invoices", func(context.Context) error { return nil })
	_ = guard.RunNow(context.Background(), "invoices")
	// Output: invoices ran
}

// A report is due at six, and useless at seven. If Redis is down at six, the Guard tries for half an hour.
func ExampleWithLateness() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())
	report := func(context.Context) error { return nil }

	_, err := guard.AddFunc("0 6 * * *", "report", report, cronlock.WithLateness(30*time.Minute))
	fmt.Println(err)
	_, err = guard.AddFunc("0 6 * * *", "other report", report, cronlock.WithLateness(0)) // the bound must be more than 0
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output:
	// <nil>
	// true
}

// After an outage this report may run up to 90 minutes late, which takes a wider window than the default hour.
func ExampleWithClaim() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())

	_, err := guard.AddFunc("0 6 * * *", "report", func(context.Context) error { return nil },
		cronlock.WithLateness(90*time.Minute), cronlock.WithClaim(tick.WithWindow(2*time.Hour, 10*time.Second)))
	fmt.Println(err)
	// Output: <nil>
}

// If an earlier run still holds the lock, the tick waits here for up to a minute. By default it would not run, and with
// Allow it would run alongside.
func ExampleWithBusy() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())

	_, err := guard.AddFunc("*/5 * * * *", "sync", func(context.Context) error { return nil },
		cronlock.WithBusy(cronlock.Wait(time.Minute)), cronlock.WithLateness(2*time.Minute))
	fmt.Println(err)
	// Output: <nil>
}

// WithLock sets the label of the holder, the TTL (how long a replica that died keeps the others out) and the longest hold.
func ExampleWithLock() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New(),
		cronlock.WithLock(holdfast.WithLabel("replica-3"), holdfast.WithTTL(10*time.Second), holdfast.WithMaxHold(time.Hour)))
	_, _ = guard.AddFunc("0 6 * * *", "invoices", func(ctx context.Context) error {
		state, err := locker.Inspect(ctx, holdfast.Key("cron", "invoices"))
		fmt.Println(state.Label)
		return err
	})
	fmt.Println(guard.RunNow(context.Background(), "invoices"))
	// Output:
	// replica-3
	// <nil>
}

// This job had better run twice than not at all: while Redis is down it runs on every replica.
func ExampleWithFailOpen() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())

	_, err := guard.AddFunc("@hourly", "heartbeat", func(context.Context) error { return nil }, cronlock.WithFailOpen())
	fmt.Println(err)
	// Output: <nil>
}

// A unit test needs no mock. RunNow runs the job at once, and a second Locker plays the replica that holds its lock.
func Example_unitTest() {
	locker, closeAll := newExampleLocker() // in a test, on miniredis.RunT(t)
	defer closeAll()
	guard := cronlock.New(locker, cron.New())
	_, _ = guard.AddFunc("0 6 * * *", "invoices", func(context.Context) error { return nil })
	ctx := context.Background()

	fmt.Println("free:", guard.RunNow(ctx, "invoices"))
	other, _ := holdfast.New(locker.Client())
	held, _ := other.TryAcquire(ctx, holdfast.Key("cron", "invoices"))
	fmt.Println("held:", errors.Is(guard.RunNow(ctx, "invoices"), holdfast.ErrNotAcquired))
	_ = held.Release(ctx)
	// Output:
	// free: <nil>
	// held: true
}
