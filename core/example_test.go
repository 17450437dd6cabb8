package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

func Example() {
	server, _ := miniredis.Run() // your Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	locker, err := holdfast.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), holdfast.Key("order", "42"), func(ctx context.Context) error {
		fmt.Println("only one replica is here:", holdfast.Held(ctx)[0].Key())
		return nil
	})
	fmt.Println(err)
	// Output:
	// only one replica is here: order:42
	// <nil>
}

func ExampleLocker_TryAcquire() {
	server, _ := miniredis.Run()
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	ctx := context.Background()

	here, _ := holdfast.New(rdb, holdfast.WithLabel("api-1"))
	there, _ := holdfast.New(rdb)
	lock, err := here.TryAcquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}

	_, err = there.TryAcquire(ctx, "report")
	var held *holdfast.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.Label)
	}
	if err := lock.Release(ctx); err != nil {
		log.Fatal(err)
	}
	again, err := there.TryAcquire(ctx, "report")
	fmt.Println(err, again.Token() > lock.Token())
	_ = again.Release(ctx)
	// Output:
	// held by api-1
	// <nil> true
}

func ExampleKey() {
	fmt.Println(holdfast.Key("order", "42"))
	fmt.Println(holdfast.Key("file", "a:b", "c"), holdfast.Key("file", "a", "b:c"))
	// Output:
	// order:42
	// file:a%3Ab:c file:a:b%3Ac
}

func ExampleNewRedLock() {
	var clients []*redis.Client
	for range 3 {
		server, _ := miniredis.Run() // masters that share nothing
		defer server.Close()
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		clients = append(clients, rdb)
	}

	// miniredis does not report its uptime, so with a quarantine it would never vote. With real masters leave the
	// quarantine on, and make it as long as your longest lease plus a few seconds.
	locker, err := holdfast.NewRedLock(clients, holdfast.WithQuarantine(0))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), "report", func(ctx context.Context) error {
		fmt.Println("on most masters:", holdfast.Held(ctx)[0].Err() == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// on most masters: true
	// <nil>
}

func ExampleWithQuarantine() {
	a := redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379"})
	b := redis.NewClient(&redis.Options{Addr: "10.0.0.2:6379"})
	c := redis.NewClient(&redis.Options{Addr: "10.0.0.3:6379"})

	locker, err := holdfast.NewRedLock([]*redis.Client{a, b, c}, holdfast.WithQuarantine(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	// A master could forget a longer lease and vote again before that lease has expired.
	_, err = locker.TryAcquire(context.Background(), "report", holdfast.WithTTL(time.Hour))
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output: true
}
