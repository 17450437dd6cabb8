package cronlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

// newExampleLocker returns a Locker on miniredis, a Redis server inside the process.
func newExampleLocker() (locker *holdfast.Locker, closeAll func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	if locker, err = holdfast.New(rdb); err != nil {
		panic(err)
	}
	return locker, func() {
		_ = locker.Shutdown(context.Background())
		_ = rdb.Close()
		server.Close()
	}
}

func Example() {
	locker, closeAll := newExampleLocker() // holdfast.New(rdb)
	defer closeAll()
	ran := make(chan string, 1)

	c := cron.New()
	guard := cronlock.New(locker, c)
	_, err := guard.AddFunc("@every 1s", "invoices", func(ctx context.Context) error {
		ran <- fmt.Sprint(holdfast.Held(ctx)[0].Key(), " with a token: ", holdfast.Held(ctx)[0].Token() > 0)
		return nil
	})
	if err != nil {
		panic(err)
	}
	c.Start()
	fmt.Println(<-ran)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := guard.Stop(ctx); err != nil { // ends the contexts of jobs that take longer
		panic(err)
	}
	// Output: cron:invoices with a token: true
}

// Wrap guards an existing job.
func ExampleGuard_Wrap() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	c := cron.New()
	guard := cronlock.New(locker, c)
	existing := cron.FuncJob(func() { fmt.Println("cleaning up") })

	job, err := guard.Wrap("clean-up", existing)
	if err != nil {
		panic(err)
	}
	if _, err := c.AddJob("0 3 * * *", job); err != nil {
		panic(err)
	}
	if err := guard.RunNow(context.Background(), "clean-up"); err != nil { // now, and not at 3:00
		panic(err)
	}
	// Output: cleaning up
}
