package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core"
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
	_, err = guard.AddFunc("0 7 * * *", "invoices", invoices) // one job, one name
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output:
	// <nil>
	// true
}

// Options for all jobs: no tick is begun more than ten seconds late, and a replica whose clock is ahead by more than five runs
// none.
func ExampleNew() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	c := cron.New(cron.WithLocation(time.UTC)) // the same on all replicas
	guard := cronlock.New(locker, c, cronlock.WithLateness(10*time.Second), cronlock.WithClaim(holdfast.WithTickWindow(time.Hour, 5*time.Second)))

	_, err := guard.AddFunc("0 6 * * *", "invoices", func(context.Context) error { return nil })
	fmt.Println(err, len(c.Entries()))
	// Output: <nil> 1
}

// A job for a cron.Schedule of one's own.
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

// By hand, beside the ticks, and not beside a run on another replica.
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
	fmt.Println(guard.Stop(ctx)) // and then locker.Shutdown(ctx)
	// Output: <nil>
}

func ExampleTick() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())
	_, _ = guard.AddFunc("0 6 * * *", "invoices", func(ctx context.Context) error {
		name, tick, _ := cronlock.Tick(ctx) // 6:00:00, or the moment of the call of RunNow
		fmt.Println(name, !tick.IsZero())
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

// A report that is of no use to anybody at seven: where Redis was away at six, it is tried for half an hour.
func ExampleWithLateness() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())
	report := func(context.Context) error { return nil }

	_, err := guard.AddFunc("0 6 * * *", "report", report, cronlock.WithLateness(30*time.Minute))
	fmt.Println(err)
	_, err = guard.AddFunc("0 6 * * *", "other report", report, cronlock.WithLateness(0)) // no job is that punctual
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output:
	// <nil>
	// true
}

// Clocks that are kept within a second of each other: a replica that is ahead of Redis by more runs nothing.
func ExampleWithClaim() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())

	_, err := guard.AddFunc("0 6 * * *", "report", func(context.Context) error { return nil },
		cronlock.WithClaim(holdfast.WithTickWindow(time.Hour, time.Second)))
	fmt.Println(err)
	// Output: <nil>
}

// A run that goes on: the next tick is left out by default, waits here, or runs beside it with Allow.
func ExampleWithBusy() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())

	_, err := guard.AddFunc("*/5 * * * *", "sync", func(context.Context) error { return nil },
		cronlock.WithBusy(cronlock.Wait(time.Minute)), cronlock.WithLateness(2*time.Minute))
	fmt.Println(err)
	// Output: <nil>
}

// The lock of a job: its holder, for how long at most, and how long a replica that died keeps the others from it.
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

// For a job that must run rather twice than not at all: without Redis it runs on every replica.
func ExampleWithFailOpen() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	guard := cronlock.New(locker, cron.New())

	_, err := guard.AddFunc("@hourly", "heartbeat", func(context.Context) error { return nil }, cronlock.WithFailOpen())
	fmt.Println(err)
	// Output: <nil>
}

// A job needs no double: RunNow runs it at once, and a second Locker is the replica that has it.
func Example_unitTest() {
	locker, closeAll := newExampleLocker() // on miniredis.RunT(t) in a test
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
