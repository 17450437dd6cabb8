package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// Masters in other regions: a dial and a round trip take longer than the tenth of a lease that is the default.
func ExampleWithNodeTimeout() {
	var clients []*redis.Client
	for _, addr := range []string{"10.1.0.1:6379", "10.2.0.1:6379", "10.3.0.1:6379"} {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	locker, err := holdfast.NewRedLock(clients,
		holdfast.WithTTL(10*time.Second), holdfast.WithNodeTimeout(2*time.Second), holdfast.WithQuarantine(time.Minute))
	fmt.Println(locker != nil, err)
	// Output: true <nil>
}

func ExampleQuarantineError() {
	var clients []*redis.Client
	for range 3 {
		rdb, closeAll := exampleRedis()
		defer closeAll()
		clients = append(clients, rdb)
	}
	locker, err := holdfast.NewRedLock(clients, holdfast.WithQuarantine(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = locker.TryAcquire(context.Background(), "report")
	var young *holdfast.QuarantineError
	if errors.As(err, &young) {
		// miniredis does not report its uptime; for real masters Until says when they vote again.
		fmt.Println("masters that do not vote:", len(young.Nodes) > 1, "until:", young.Until.IsZero())
	}
	fmt.Println(errors.Is(err, holdfast.ErrUnavailable))
	// Output:
	// masters that do not vote: true until: true
	// true
}
