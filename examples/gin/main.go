// Gin is an HTTP service in which the requests for one order run one at a time, on however many replicas.
//
//	go run ./examples/gin
//	curl -i -X POST localhost:8080/orders/42/pay & curl -i -X POST localhost:8080/orders/42/pay
//	curl -i -X POST -u ann:secret -H 'Idempotency-Key: "8e03978e"' localhost:8080/orders
//
// Redis is embedded (miniredis), unless REDIS_ADDR names one: then start the program twice, with another LISTEN_ADDR,
// and send the requests to both.
package main

import (
	"context"
	"errors"
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
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func router(locker *holdfast.Locker, rdb redis.Cmdable) http.Handler {
	r := gin.New()
	r.Use(gin.Recovery())

	// One order at a time. A request that finds it busy waits for 100 ms, and then gets a 409 with Retry-After. A task or a
	// cron job that locks Key("order", id) is kept out as well.
	r.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), func(c *gin.Context) {
		// The lock's context is the request's: pass it on, so that the work ends when the lock is lost.
		receipt, err := pay(c.Request.Context(), c.Param("id"))
		if err != nil {
			_ = c.Error(err) // after a loss the middleware answers with 503
			return
		}
		c.String(http.StatusOK, "%s, token %d\n", receipt, holdfast.Held(c.Request.Context())[0].Token())
	})

	// Authentication is outside of the lock: who may not do something must not be able to block it. The client chooses the
	// Idempotency-Key, so it counts together with who the client is, and on this route only.
	auth := gin.BasicAuth(gin.Accounts{"ann": "secret", "bob": "secret"})
	perUser := ginlock.Parts(ginlock.Value(gin.AuthUserKey), ginlock.Header("Idempotency-Key"))
	r.POST("/orders", auth, ginlock.New(locker, "create-order", perUser, ginlock.WithBusy(ginlock.Wait(5*time.Second))),
		func(c *gin.Context) { create(c, rdb) })
	return r
}

// pay takes as long as a payment provider does.
func pay(ctx context.Context, order string) (receipt string, err error) {
	select {
	case <-time.After(500 * time.Millisecond):
		return "paid order " + order, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// create answers a repeated request as the first one. The lock keeps the two apart, but remembers nothing: the outcome
// has to be stored, under the lock.
func create(c *gin.Context, rdb redis.Cmdable) {
	ctx, outcome := c.Request.Context(), "holdfast_example:"+holdfast.Held(c.Request.Context())[0].Key()
	order, err := rdb.Get(ctx, outcome).Int64()
	if errors.Is(err, redis.Nil) {
		if order, err = rdb.Incr(ctx, "holdfast_example:orders").Result(); err == nil {
			err = rdb.Set(ctx, outcome, order, 24*time.Hour).Err()
		}
	}
	if err != nil {
		_ = c.AbortWithError(http.StatusServiceUnavailable, err)
		return
	}
	c.String(http.StatusCreated, "order %d\n", order)
}

func run(ctx context.Context, out io.Writer) error {
	rdb, closeRedis, err := backend.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	gin.SetMode(gin.ReleaseMode)
	addr := os.Getenv("LISTEN_ADDR")
	if addr == "" {
		addr = "localhost:8080"
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: router(locker, rdb), ReadHeaderTimeout: 10 * time.Second}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	go func() { _ = server.Serve(listener) }()

	<-ctx.Done()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	// First the server, which lets its handlers finish, and then the Locker that they need.
	return errors.Join(server.Shutdown(patience), locker.Shutdown(patience))
}
