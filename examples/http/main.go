// HTTP is a service with the mux of net/http that handles one request at a time for each order, on any number of replicas. A
// request that finds its order busy waits for a moment, and then gets a 409.
//
//	go run ./examples/http
//	curl -i -X POST localhost:8080/orders/42/pay & curl -i -X POST localhost:8080/orders/42/pay
//
// It serves at LISTEN_ADDR, localhost:8080 by default, until Ctrl-C. One curl prints "paid order 42" and the token of the
// lock, the other "409 Conflict". Redis is embedded (miniredis), unless REDIS_ADDR names one. In that case start the program
// twice, the second time with another LISTEN_ADDR, and send a request to each.
package main

import (
	"cmp"
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

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
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
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}

	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN_ADDR"), "localhost:8080"))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	server := &http.Server{Handler: router(locker, pay), ReadTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()

	<-ctx.Done()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	// The server goes first and lets its handlers finish. The Locker follows, because the handlers need it.
	return errors.Join(server.Shutdown(patience), locker.Shutdown(patience))
}

func router(locker *holdfast.Locker, pay func(ctx context.Context, order string) error) http.Handler {
	// The lock's key is Key("order", id). It also excludes tasks and cron jobs that lock the same key. Add authentication in
	// front: a client that is not allowed to pay must not block the order.
	lock := httplock.Middleware(locker, "order", httplock.Path("id"))
	mux := http.NewServeMux()
	// The lock goes around the handler, behind the mux: in front of it, no path value is known yet.
	mux.Handle("POST /orders/{id}/pay", lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The request's context is the lock's context. Pass it on, so that the work ends when the lock is lost.
		ctx, id := r.Context(), r.PathValue("id")
		if err := pay(ctx, id); err != nil {
			httplock.Respond(w, r, err) // 503 after a loss
			return
		}
		fmt.Fprintf(w, "paid order %s, token %d\n", id, holdfast.Held(ctx)[0].Token())
	})))
	return mux
}

// pay takes as long as a payment provider does.
func pay(ctx context.Context, order string) error {
	select {
	case <-time.After(500 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
