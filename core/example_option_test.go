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

// A handler that hangs keeps the lock for 20 s at most.
func ExampleWithMaxHold() {
	locker := exampleLocker()
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

// A job of any length that hangs loses its lock a minute after the last item.
func ExampleWithProgress() {
	locker := exampleLocker()

	err := locker.Do(context.Background(), "import", func(ctx context.Context) error {
		for range 3 { // for each item of the import
			if ctx.Err() != nil {
				return context.Cause(ctx) // matches holdfast.ErrNoProgress after an item that took too long
			}
			holdfast.Progress(ctx)
		}
		return nil
	}, holdfast.WithProgress(time.Minute))
	fmt.Println(err)
	// Output: <nil>
}

// A function that locks what its caller may already hold.
func ExampleWithReentrancy() {
	locker := exampleLocker()

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
	job, service, stranger := exampleLocker(), exampleLocker(), exampleLocker()
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

// Hooks feed metrics and logs.
func ExampleWithTrace() {
	locker := exampleLocker(holdfast.WithTrace(&holdfast.Trace{
		Acquired: func(e holdfast.Event) { fmt.Println("acquired", e.Key, "looks:", e.Attempts) },
		Ended:    func(e holdfast.Event) { fmt.Println("ended", e.Key, e.Err) }, // nil, or ErrLost
	}))

	_ = locker.Do(context.Background(), "report", func(context.Context) error { return nil })
	// Output:
	// acquired report looks: 1
	// ended report <nil>
}

func ExampleLogTrace() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelDebug, // slog.LevelInfo shows only losses, long holds and errors
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.MessageKey || a.Key == "key" {
				return a
			}
			return slog.Attr{} // differs from run to run
		},
	}))
	locker := exampleLocker(holdfast.WithTrace(holdfast.LogTrace(log)))

	_ = locker.Do(context.Background(), "report", func(context.Context) error { return nil })
	// Output:
	// msg="holdfast: acquired" key=report
	// msg="holdfast: released" key=report
}

// At most two exports of a tenant run at a time, on all replicas together.
func ExampleWithLimit() {
	locker := exampleLocker()
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
	locker := exampleLocker()
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

// One call for each user, and twenty for the provider. Keys are taken in byte order: with the provider's last, a call that
// waits for its user takes up no place there.
func ExampleOnKey() {
	locker := exampleLocker()
	user, provider := holdfast.Key("by-user", "7"), holdfast.Key("provider", "x")

	err := locker.DoAll(context.Background(), []string{user, provider}, func(ctx context.Context) error {
		for _, lock := range holdfast.Held(ctx) {
			fmt.Println(lock.Key(), lock.Limit())
		}
		return nil
	}, holdfast.OnKey(provider, holdfast.WithLimit(20)))
	fmt.Println(err)
	// Output:
	// provider:x 20
	// by-user:7 1
	// <nil>
}

// Each seat is fenced: n locks, of which a call takes the first free one, starting from a random one.
func ExampleWithLimit_seats() {
	locker := exampleLocker()
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
