package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// ship is code that takes a lock, like yours.
func ship(ctx context.Context, locker *holdfast.Locker, order string) string {
	err := locker.Do(ctx, holdfast.Key("order", order), func(context.Context) error {
		return nil // and here it ships
	}, holdfast.WithWait(10*time.Millisecond))
	switch {
	case errors.Is(err, holdfast.ErrNotAcquired):
		return "busy, try again"
	case errors.Is(err, holdfast.ErrUnavailable):
		return "no Redis"
	case err != nil:
		return err.Error()
	}
	return "shipped"
}

// Code that takes a lock needs no mock. Use miniredis as the Redis, a second Locker on it as the other replica, and a
// closed server as the outage.
func Example_unitTest() {
	server, err := miniredis.Run() // in a test: miniredis.RunT(t)
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	locker, _ := holdfast.New(rdb)
	other, _ := holdfast.New(rdb)
	ctx := context.Background()

	fmt.Println("free:", ship(ctx, locker, "42"))

	held, _ := other.TryAcquire(ctx, holdfast.Key("order", "42"))
	fmt.Println("held:", ship(ctx, locker, "42"))
	_ = held.Release(ctx)

	server.Close()
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // so that the test does not wait for as long as your users would
	defer cancel()
	fmt.Println("unavailable:", ship(ctx, locker, "42"))
	// Output:
	// free: shipped
	// held: busy, try again
	// unavailable: no Redis
}
