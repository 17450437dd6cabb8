package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/redis/go-redis/v9"
)

func Example() {
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
	locker, err := redlock.New(clients, redlock.WithQuarantine(0))
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

	locker, err := redlock.New([]*redis.Client{a, b, c}, redlock.WithQuarantine(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	// A master could forget a longer lease and vote again before that lease has expired.
	_, err = locker.TryAcquire(context.Background(), "report", holdfast.WithTTL(time.Hour))
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output: true
}

// Masters in other regions: a dial and a round trip take longer than the tenth of a lease that is the default.
func ExampleWithNodeTimeout() {
	var clients []*redis.Client
	for _, addr := range []string{"10.1.0.1:6379", "10.2.0.1:6379", "10.3.0.1:6379"} {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	locker, err := redlock.New(clients,
		holdfast.WithTTL(10*time.Second), redlock.WithNodeTimeout(2*time.Second), redlock.WithQuarantine(time.Minute))
	fmt.Println(locker != nil, err)
	// Output: true <nil>
}

func ExampleQuarantineError() {
	var clients []*redis.Client
	for range 3 {
		server, _ := miniredis.Run()
		defer server.Close()
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		clients = append(clients, rdb)
	}
	locker, err := redlock.New(clients, redlock.WithQuarantine(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = locker.TryAcquire(context.Background(), "report")
	var young *redlock.QuarantineError
	if errors.As(err, &young) {
		// miniredis does not report its uptime; for real masters Until says when they vote again.
		fmt.Println("masters that do not vote:", len(young.Nodes) > 1, "until:", young.Until.IsZero())
	}
	fmt.Println(errors.Is(err, holdfast.ErrUnavailable))
	// Output:
	// masters that do not vote: true until: true
	// true
}
