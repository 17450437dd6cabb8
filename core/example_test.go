package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"

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
	here, there := exampleLocker(holdfast.WithLabel("api-1")), exampleLocker()
	ctx := context.Background()

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
