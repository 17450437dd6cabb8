package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// exampleLocker is a Locker on a Redis inside the process.
func exampleLocker(opts ...holdfast.Option) *holdfast.Locker {
	locker, err := holdfast.New(exampleRedis(), opts...)
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

func ExampleLocker_Do() {
	locker := exampleLocker()

	err := locker.Do(context.Background(), "report", func(ctx context.Context) error {
		return errors.New("no paper") // the lock is released all the same
	})
	switch {
	case errors.Is(err, holdfast.ErrLost):
		fmt.Println("it may have run beside another holder")
	case errors.Is(err, holdfast.ErrNotAcquired), errors.Is(err, holdfast.ErrUnavailable):
		fmt.Println("it did not run, or Redis did not confirm the release")
	default:
		fmt.Println(err)
	}
	// Output: no paper
}

// What redsync and redislock do: a bounded wait, and a lease that is not renewed.
func ExampleLocker_Acquire() {
	locker := exampleLocker()
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, "order:42",
		holdfast.WithTTL(8*time.Second), holdfast.WithWait(5*time.Second), holdfast.WithoutRenewal())
	if err != nil {
		log.Fatal(err) // holdfast.ErrNotAcquired: another holder had it for 5 s
	}
	defer lock.Release(ctx)
	fmt.Println(lock.Key(), lock.Err())
	// Output: order:42 <nil>
}

// A page for operators: many keys in one pipeline.
func ExampleLocker_InspectAll() {
	locker := exampleLocker(holdfast.WithLabel("api-7f9c"))
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, "order:42")
	if err != nil {
		log.Fatal(err)
	}
	for state, err := range locker.InspectAll(ctx, "order:41", "order:42", "") {
		if err != nil {
			fmt.Printf("%q: %v\n", state.Key, err) // of this key alone
			continue
		}
		fmt.Printf("%q: held %v, by %q\n", state.Key, state.Held, state.Label)
	}
	_ = lock.Release(ctx)
	// Output:
	// "order:41": held false, by ""
	// "order:42": held true, by "api-7f9c"
	// "": holdfast: empty key
}

// Shut down the servers and workers first, then the Locker, and close the client last.
func ExampleLocker_Shutdown() {
	locker := exampleLocker()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Println(locker.Shutdown(ctx)) // waits for the holders; if ctx ends first, it cancels their contexts

	_, err := locker.TryAcquire(ctx, "report")
	fmt.Println(errors.Is(err, holdfast.ErrClosed))
	// Output:
	// <nil>
	// true
}

// The context of Acquire bounds the acquisition alone. Work under the lock uses the lock's context.
func ExampleLock_Context() {
	locker := exampleLocker()
	ctx := context.Background()

	brief, cancel := context.WithTimeout(ctx, 5*time.Second)
	lock, err := locker.Acquire(brief, "report")
	cancel()
	if err != nil {
		log.Fatal(err)
	}
	under := lock.Context(ctx)
	fmt.Println(under.Err(), ctx.Err())
	_ = lock.Release(ctx)
	fmt.Println(under.Err(), ctx.Err())
	// Output:
	// <nil> <nil>
	// context canceled <nil>
}

// The lock's key in Redis, and how long the holder can rely on it without a renewal.
func ExampleLock_Deadline() {
	locker := exampleLocker(holdfast.WithPrefix("shop:"))
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, holdfast.Key("order", "42"), holdfast.WithTTL(30*time.Second), holdfast.WithoutRenewal())
	if err != nil {
		log.Fatal(err)
	}
	expiry := time.Now().Add(locker.Client().PTTL(ctx, lock.Key()).Val())
	fmt.Println(lock.Key(), "ends for its holder before it does in Redis:", lock.Deadline().Before(expiry))
	_ = lock.Release(ctx)
	fmt.Println("over:", !lock.Deadline().After(time.Now()))
	// Output:
	// shop:order:42 ends for its holder before it does in Redis: true
	// over: true
}

// A step that takes longer than the lease.
func ExampleLock_Extend() {
	locker := exampleLocker(holdfast.WithoutRenewal())
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)
	before := lock.Deadline()
	err = lock.Extend(ctx, 10*time.Minute)
	fmt.Println(err, lock.Deadline().Sub(before) > 5*time.Minute)
	// Output: <nil> true
}

// Look at the lock between two steps that no context can interrupt.
func ExampleLock_Err() {
	locker := exampleLocker()
	ctx := context.Background()

	lock, err := locker.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	if err := lock.Err(); err != nil {
		return // lost: holdfast.ErrLost
	}
	fmt.Println("held until", time.Until(lock.Deadline()) > 0)
	_ = lock.Release(ctx)
	fmt.Println(lock.Err() != nil)
	// Output:
	// held until true
	// true
}

// Storage that package sqlfence does not cover gets the token with each write, and compares it.
func ExampleLock_Token() {
	locker := exampleLocker()
	ctx := context.Background()

	var seen int64 // by the storage: the largest token so far
	store := func(token int64) error {
		if token < seen {
			return fmt.Errorf("a newer holder was here")
		}
		seen = token
		return nil
	}
	var tokens []int64
	for range 2 {
		_ = locker.Do(ctx, "report", func(ctx context.Context) error {
			token := holdfast.Held(ctx)[0].Token()
			tokens = append(tokens, token)
			return store(token)
		})
	}
	fmt.Println(tokens[0] < tokens[1])
	fmt.Println(store(tokens[0])) // the first holder, after a pause
	// Output:
	// true
	// a newer holder was here
}

func ExampleLock_Release() {
	locker := exampleLocker()

	ctx, cancel := context.WithCancel(context.Background())
	lock, err := locker.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	cancel()
	fmt.Println(lock.Context(ctx).Err(), lock.Err()) // the work is cancelled, the lock is still held
	fmt.Println(lock.Release(context.Background()))
	fmt.Println(lock.Release(context.Background())) // as before
	// Output:
	// context canceled <nil>
	// <nil>
	// <nil>
}

func ExampleHeld() {
	locker := exampleLocker()

	err := locker.Do(context.Background(), "warehouse", func(ctx context.Context) error {
		return locker.Do(ctx, "shelf", func(ctx context.Context) error {
			for _, lock := range holdfast.Held(ctx) {
				fmt.Println(lock.Key())
			}
			return nil
		})
	})
	fmt.Println(err, len(holdfast.Held(context.Background())))
	// Output:
	// shelf
	// warehouse
	// <nil> 0
}

func ExampleHeldError() {
	here, there := exampleLocker(holdfast.WithLabel("worker-3")), exampleLocker()
	ctx := context.Background()

	lock, err := here.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)
	_, err = there.Acquire(ctx, "report", holdfast.WithWait(0))
	var held *holdfast.HeldError
	if errors.As(err, &held) {
		fmt.Println(held.Key, "is with", held.Label)
		fmt.Println("come back in 15 s at most:", held.TimeLeft <= 15*time.Second)
	}
	fmt.Println(errors.Is(err, holdfast.ErrNotAcquired))
	// Output:
	// report is with worker-3
	// come back in 15 s at most: true
	// true
}
