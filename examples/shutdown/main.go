// Shutdown stops a service that has HTTP handlers, tasks and cron jobs under locks, without cutting work off. The order of
// the steps is in shutdown.go, in the same folder.
//
//	go run ./examples/shutdown
//	curl -X POST localhost:8080/orders/42/pay     # and Ctrl-C while it runs
//
// It prints when work begins and ends, and after Ctrl-C what has stopped. It serves at LISTEN_ADDR, localhost:8080 by
// default. Redis is embedded (miniredis), unless REDIS_ADDR names one.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

// queue keeps the example apart from everything else in your Redis.
const queue = "holdfast_example_shutdown"

func main() {
	gin.SetMode(gin.ReleaseMode)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the program at once
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" { // a Redis inside this process, to try it out
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true) // leases expire as time goes by
		if err := server.Start(); err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close() // last of all: the Locker has to release through it
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
		ShutdownTimeout: asynqPatience, // a task that takes longer is put back while it still runs
	}))
	err = worker.Start(orders.Wrap(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { return work(ctx, out, "task") })))
	if err != nil {
		return err
	}
	receipt := asynq.NewTask("receipt", []byte(`{"order_id": 7}`), asynq.Queue(queue))
	if _, err := asynq.NewClientFromRedisClient(rdb).Enqueue(receipt); err != nil {
		return err
	}
	jobs := cron.New(cron.WithSeconds(), cron.WithLocation(time.UTC))
	guard := cronlock.New(locker, jobs)
	_, err = guard.AddFunc("* * * * * *", "clean-up", func(ctx context.Context) error { return work(ctx, out, "job") })
	if err != nil {
		return err
	}
	jobs.Start()
	router := gin.New()
	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), func(c *gin.Context) {
		if err := work(c.Request.Context(), out, "request"); err != nil {
			_ = c.Error(err) // after a loss the middleware answers with 503
		}
	})
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN_ADDR"), "localhost:8080"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: router, ReadTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())

	<-ctx.Done()
	fmt.Fprintln(out, "shutting down")
	return shutDown(context.WithoutCancel(ctx), out, server, guard, worker, locker)
}
