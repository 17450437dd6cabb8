package tick_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/redis/go-redis/v9"
)

// A cron job that takes a millisecond, on two replicas whose timers fire at different times.
func ExampleClaim() {
	here, there := exampleLocker(), exampleLocker()
	ctx := context.Background()

	at := time.Now().Truncate(time.Minute) // the nominal time, the same on all replicas
	for _, replica := range []*holdfast.Locker{here, there} {
		mine, err := tick.Claim(ctx, replica, "invoices", at)
		fmt.Println(mine, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// Each replica counts its periods from its own start, so that ticks differ. One per minute runs.
func ExampleWithMinGap() {
	locker := exampleLocker()
	ctx := context.Background()

	start := time.Now().Add(-3 * time.Minute)
	for _, after := range []time.Duration{0, 20 * time.Second, 60 * time.Second, 80 * time.Second} {
		mine, err := tick.Claim(ctx, locker, "clean-up", start.Add(after), tick.WithMinGap(time.Minute))
		fmt.Println(after, mine, err)
	}
	// Output:
	// 0s true <nil>
	// 20s false <nil>
	// 1m0s true <nil>
	// 1m20s false <nil>
}

func ExampleWithWindow() {
	locker := exampleLocker()
	ctx := context.Background()

	at := time.Now().Add(-2 * time.Hour)
	_, err := tick.Claim(ctx, locker, "reports", at)
	fmt.Println(errors.Is(err, tick.ErrWindow))
	mine, err := tick.Claim(ctx, locker, "reports", at, tick.WithWindow(24*time.Hour, 10*time.Second))
	fmt.Println(mine, err)
	// Output:
	// true
	// true <nil>
}

// A scheduler waits until the tick has come by the clock of Redis, and does the work only if it would not begin too late.
func ExampleClock() {
	clock := tick.Clock{Locker: exampleLocker()}
	ctx := context.Background()

	until, won, err := clock.Claim(ctx, "backup", time.Now().Truncate(time.Second), time.Minute)
	fmt.Println(won, err, time.Until(until) > 0)
	_, won, err = clock.Claim(ctx, "backup", time.Now().Add(-time.Hour), time.Minute)
	fmt.Println(won, errors.Is(err, tick.ErrLate))
	// Output:
	// true <nil> true
	// false true
}

// A scheduler of one's own, on two replicas: its timers, and a Runner.
func ExampleRunner() {
	at := time.Now().Truncate(time.Second)
	for range 2 { // in a program, this is a process
		runner := tick.NewRunner(&tick.Clock{Locker: exampleLocker()})
		work := &tick.Work{Name: "statistics", Wait: -1, Do: func(ctx context.Context, at time.Time) error {
			fmt.Println("a token:", holdfast.Held(ctx)[0].Token() > 0)
			return nil
		}}
		runner.Run(work, at, time.Minute, func(o tick.Outcome, err error) {
			fmt.Println("claimed:", o.Claimed, "ran:", o.Ran, err)
		})

		quiet := make(chan struct{})
		close(quiet) // no timer fires any more
		if err := runner.Stop(context.Background(), quiet); err != nil {
			log.Fatal(err)
		}
		runner.Run(work, at.Add(time.Minute), time.Minute, func(_ tick.Outcome, err error) { fmt.Println(errors.Is(err, holdfast.ErrClosed)) })
	}
	// Output:
	// a token: true
	// claimed: true ran: true <nil>
	// true
	// claimed: false ran: false <nil>
	// true
}

// exampleLocker is a Locker on a Redis inside the process.
func exampleLocker() *holdfast.Locker {
	locker, err := holdfast.New(exampleRedis())
	if err != nil {
		log.Fatal(err)
	}
	return locker
}

var exampleRedis = sync.OnceValue(func() *redis.Client {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	return redis.NewClient(&redis.Options{Addr: server.Addr()})
})
