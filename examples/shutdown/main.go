// Shutdown ends a service that has HTTP handlers, tasks and cron jobs under locks, without cutting work off.
//
//	go run ./examples/shutdown
//	curl -X POST localhost:8080/orders/42/pay     # and Ctrl-C while it runs
//
// It listens at LISTEN_ADDR if it is set. Redis is embedded (miniredis), unless REDIS_ADDR names one.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/robfig/cron/v3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the program at once
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// queue keeps the example apart from what else is in a Redis of yours: a server fails the tasks that it has no handler for.
const queue = "holdfast_example_shutdown"

func run(ctx context.Context, out io.Writer) error {
	rdb, closeRedis, err := backend.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeRedis() // the client last of all: the Locker has to release through it
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}

	orders := asynqlock.New(locker, "order", asynqlock.Field("order_id"))
	worker := asynq.NewServerFromRedisClient(rdb, orders.Config(asynq.Config{
		Queues:          map[string]int{queue: 1},
		LogLevel:        asynq.ErrorLevel,
		ShutdownTimeout: patience, // of 8 s by default: what takes longer is put back while it still runs
	}))
	err = worker.Start(orders.Wrap(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		return work(ctx, out, "task")
	})))
	if err != nil {
		return err
	}
	jobs := cron.New(cron.WithSeconds(), cron.WithLocation(time.UTC))
	guard := cronlock.New(locker, jobs)
	_, err = guard.AddFunc("* * * * * *", "clean-up", func(ctx context.Context) error { return work(ctx, out, "job") })
	if err != nil {
		return err
	}
	jobs.Start()

	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	client := asynq.NewClientFromRedisClient(rdb)
	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), func(c *gin.Context) {
		if err := work(c.Request.Context(), out, "request"); err != nil {
			_ = c.Error(err) // after a loss the middleware answers
			return
		}
		// It runs when this request has released the order.
		payload, err := json.Marshal(map[string]string{"order_id": c.Param("id")})
		if err == nil {
			_, err = client.EnqueueContext(c.Request.Context(), asynq.NewTask("receipt", payload), asynq.Queue(queue))
		}
		if err != nil {
			_ = c.AbortWithError(http.StatusServiceUnavailable, err)
			return
		}
		c.String(http.StatusOK, "paid\n")
	})
	addr := os.Getenv("LISTEN_ADDR")
	if addr == "" {
		addr = "localhost:8080"
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: router, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())

	<-ctx.Done()
	fmt.Fprintln(out, "shutting down")
	return shutDown(context.WithoutCancel(ctx), out, server, guard, worker, locker)
}

// finished is for a test to replace.
var finished = func() <-chan time.Time { return time.After(500 * time.Millisecond) }

// work is none that ends at the signal, which is for the steps above to turn into an order. It ends with its lock.
func work(ctx context.Context, out io.Writer, what string) error {
	fmt.Fprintln(out, what, "begins")
	select {
	case <-finished():
	case <-ctx.Done():
		fmt.Fprintln(out, what, "is cut off:", context.Cause(ctx))
		return context.Cause(ctx)
	}
	fmt.Fprintln(out, what, "ends")
	return nil
}
