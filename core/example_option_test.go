package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// The Locker's options apply to all of its calls. A call's own options override them.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer rdb.Close()

	_, err := holdfast.New(rdb, holdfast.WithTTL(30*time.Second), holdfast.WithLabel("api-7f9c"), holdfast.WithPrefix("shop:"))
	fmt.Println(err) // nothing was sent yet

	_, err = holdfast.New(rdb, holdfast.WithTTL(time.Millisecond))
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output:
	// <nil>
	// true
}

func ExampleWithTTL() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb) // 15 s
	ctx := context.Background()

	// If this holder crashes, the others wait for a minute. While it runs, its lease is renewed every 20 s.
	lock, err := locker.Acquire(ctx, "import", holdfast.WithTTL(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(time.Until(lock.Deadline()) > 15*time.Second)
	_ = lock.Release(ctx)
	// Output: true
}

func ExampleWithWait() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	here, there := exampleLocker(rdb), exampleLocker(rdb)
	ctx := context.Background()

	err := here.Do(ctx, "report", func(context.Context) error {
		_, err := there.Acquire(ctx, "report", holdfast.WithWait(10*time.Millisecond))
		return err
	})
	fmt.Println(errors.Is(err, holdfast.ErrNotAcquired))
	// Output: true
}

// A lease that ends on its own, for work that cannot be interrupted.
func ExampleWithoutRenewal() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, "report", holdfast.WithTTL(time.Hour), holdfast.WithoutRenewal())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lock.Err(), lock.Deadline().Before(time.Now().Add(time.Hour)))
	_ = lock.Release(ctx)
	// Output: <nil> true
}

// A handler that hangs keeps the lock for 20 s at most.
func ExampleWithMaxHold() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, "report", holdfast.WithMaxHold(20*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	err = lock.Extend(ctx, time.Hour)
	fmt.Println(err, time.Until(lock.Deadline()) <= 20*time.Second)
	_ = lock.Release(ctx)
	// Output: <nil> true
}

// A function that locks what its caller may already hold.
func ExampleWithReentrancy() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)

	deposit := func(ctx context.Context, opts ...holdfast.CallOption) error {
		return locker.Do(ctx, "account", func(context.Context) error { return nil }, opts...)
	}
	_ = locker.Do(context.Background(), "account", func(ctx context.Context) error {
		fmt.Println(errors.Is(deposit(ctx), holdfast.ErrSelfDeadlock))
		fmt.Println(deposit(ctx, holdfast.WithReentrancy()))
		return nil
	})
	// Output:
	// true
	// <nil>
}

// A job and the service that it calls hold one lock together.
func ExampleWithReentryID() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	job, service, stranger := exampleLocker(rdb), exampleLocker(rdb), exampleLocker(rdb)
	ctx := context.Background()
	id := holdfast.WithReentryID("0d9e6a1c-5f0b") // random, and sent along with the call

	first, err := job.TryAcquire(ctx, "account", id)
	if err != nil {
		log.Fatal(err)
	}
	second, err := service.TryAcquire(ctx, "account", id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Token() == second.Token())

	_ = first.Release(ctx)
	_, err = stranger.TryAcquire(ctx, "account")
	fmt.Println(errors.Is(err, holdfast.ErrNotAcquired))
	_ = second.Release(ctx)
	// Output:
	// true
	// true
}

func ExampleWithReplicaAcks() {
	rdb, closeAll := exampleRedis() // has no replica
	defer closeAll()
	locker := exampleLocker(rdb, holdfast.WithReplicaAcks(1, 100*time.Millisecond))

	_, err := locker.TryAcquire(context.Background(), "report")
	fmt.Println(errors.Is(err, holdfast.ErrUnavailable))
	// Output: true
}

// Each replica counts its periods from its own start, so that ticks differ. One per minute runs.
func ExampleWithMinGap() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)
	ctx := context.Background()

	start := time.Now().Add(-3 * time.Minute)
	for _, after := range []time.Duration{0, 20 * time.Second, 60 * time.Second, 80 * time.Second} {
		mine, err := locker.Claim(ctx, "clean-up", start.Add(after), holdfast.WithMinGap(time.Minute))
		fmt.Println(after, mine, err)
	}
	// Output:
	// 0s true <nil>
	// 20s false <nil>
	// 1m0s true <nil>
	// 1m20s false <nil>
}

func ExampleWithTickWindow() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)
	ctx := context.Background()

	tick := time.Now().Add(-2 * time.Hour)
	_, err := locker.Claim(ctx, "invoices", tick)
	fmt.Println(errors.Is(err, holdfast.ErrTick))
	mine, err := locker.Claim(ctx, "invoices", tick, holdfast.WithTickWindow(24*time.Hour, 10*time.Second))
	fmt.Println(mine, err)
	// Output:
	// true
	// true <nil>
}

// Hooks feed metrics and logs.
func ExampleWithTrace() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb, holdfast.WithTrace(&holdfast.Trace{
		Acquired: func(e holdfast.Event) { fmt.Println("acquired", e.Key, "looks:", e.Attempts) },
		Released: func(e holdfast.Event) { fmt.Println("released", e.Key, e.Err) },
		Lost:     func(e holdfast.Event) { fmt.Println("lost", e.Key, "after", e.Elapsed) },
	}))

	_ = locker.Do(context.Background(), "report", func(context.Context) error { return nil })
	// Output:
	// acquired report looks: 1
	// released report <nil>
}

func ExampleLogTrace() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelDebug, // slog.LevelInfo shows only losses, long holds and errors
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.MessageKey || a.Key == "key" {
				return a
			}
			return slog.Attr{} // differs from run to run
		},
	}))
	locker := exampleLocker(rdb, holdfast.WithTrace(holdfast.LogTrace(log)))

	_ = locker.Do(context.Background(), "report", func(context.Context) error { return nil })
	// Output:
	// msg="holdfast: acquired" key=report
	// msg="holdfast: released" key=report
}

// The label shows humans which process holds the lock.
func ExampleWithLabel() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	here, there := exampleLocker(rdb, holdfast.WithLabel("api-7f9c")), exampleLocker(rdb)
	ctx := context.Background()

	_ = here.Do(ctx, "report", func(context.Context) error {
		_, err := there.TryAcquire(ctx, "report")
		var held *holdfast.HeldError
		fmt.Println(errors.As(err, &held), held.Label)
		return nil
	})
	// Output: true api-7f9c
}

func ExampleWithPrefix() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb, holdfast.WithPrefix("shop:"))

	_ = locker.Do(context.Background(), "report", func(ctx context.Context) error {
		fmt.Println(holdfast.Held(ctx)[0].Key())
		return nil
	})
	// Output: shop:report
}

// Calls of one process hand the lock to each other ten times in a row, or for 20 ms, before other processes have their
// turn.
func ExampleWithLocalHandover() {
	rdb, closeAll := exampleRedis()
	defer closeAll()

	locker, err := holdfast.New(rdb, holdfast.WithLocalHandover(10, 20*time.Millisecond))
	fmt.Println(locker != nil, err)
	// Output: true <nil>
}

// For a Redis whose ACL does not allow SUBSCRIBE.
func ExampleWithPolling() {
	rdb, closeAll := exampleRedis()
	defer closeAll()

	locker, err := holdfast.New(rdb, holdfast.WithPolling(50*time.Millisecond, time.Second))
	fmt.Println(locker != nil, err)
	// Output: true <nil>
}

// At most two exports of a tenant run at a time, on all replicas together.
func ExampleWithLimit() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)
	ctx := context.Background()

	var exports []*holdfast.Lock
	for {
		lock, err := locker.TryAcquire(ctx, holdfast.Key("tenant", "7"), holdfast.WithLimit(2))
		var held *holdfast.HeldError
		if errors.As(err, &held) {
			fmt.Println(len(exports), "are let in;", held.Holders, "hold it")
			break
		}
		exports = append(exports, lock)
	}
	for _, lock := range exports {
		_ = lock.Release(ctx)
	}
	// Output: 2 are let in; 2 hold it
}

// Many read a cache, one rebuilds it.
func ExampleWithShared() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)
	ctx := context.Background()

	cache := "old"
	read := func(ctx context.Context) error {
		fmt.Println(cache)
		return nil
	}
	_ = locker.Do(ctx, "cache", read, holdfast.WithShared())      // together with other readers
	_ = locker.Do(ctx, "cache", func(ctx context.Context) error { // alone
		cache = "new"
		return nil
	})
	_ = locker.Do(ctx, "cache", read, holdfast.WithShared())
	// Output:
	// old
	// new
}

// Each seat is fenced: n locks, of which a call takes the first free one, starting from a random one.
func ExampleWithLimit_seats() {
	rdb, closeAll := exampleRedis()
	defer closeAll()
	locker := exampleLocker(rdb)
	ctx := context.Background()

	const seats = 3
	take := func() (*holdfast.Lock, error) {
		var err error
		for i, first := 0, rand.N(seats); i < seats; i++ {
			var lock *holdfast.Lock
			if lock, err = locker.TryAcquire(ctx, holdfast.Key("seat", fmt.Sprint((first+i)%seats))); err == nil {
				return lock, nil // its key and token go to the database
			}
		}
		return nil, err
	}
	for range seats {
		lock, err := take()
		if err != nil {
			log.Fatal(err)
		}
		defer lock.Release(ctx)
	}
	_, err := take()
	fmt.Println(errors.Is(err, holdfast.ErrNotAcquired))
	// Output: true
}
