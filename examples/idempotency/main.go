// Idempotency is an HTTP service that makes an order once, however often its client sends the request, even if a replica
// dies between the order and its answer.
//
//	go run ./examples/idempotency
//	curl -i -u anna:secret -H 'Idempotency-Key: "8e03978e-40d5"' -d lamp localhost:8080/orders
//
// Send it twice: the second reply repeats the first, with Idempotency-Replayed: true. It serves at LISTEN_ADDR,
// localhost:8080 by default, until Ctrl-C, and prints each order that it makes. Redis and the database are embedded
// (miniredis and SQLite in memory), unless REDIS_ADDR names a Redis, and DATABASE_URL a file, such as
// file:orders.db?_txlock=immediate&_pragma=busy_timeout(10000).
package main

import (
	"cmp"
	"context"
	"database/sql"
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
	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

func main() {
	gin.SetMode(gin.ReleaseMode)
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
	db, err := sql.Open("sqlite", cmp.Or(os.Getenv("DATABASE_URL"), ":memory:"))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // in memory, each connection would be a database of its own
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		return err
	}
	// In a real service, a migration does this.
	_, err = db.ExecContext(ctx, fence.DDL()+"; CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, account TEXT, item TEXT);"+answersDDL)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN_ADDR"), "localhost:8080"))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", listener.Addr())
	// A client holds its request's lock for as long as it takes to send the body, so bound that: see ginlock.New.
	server := &http.Server{Handler: router(locker, &answers{db, fence}, out), ReadTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()

	<-ctx.Done()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	// The server goes first and lets its handlers finish. The Locker follows, because the handlers need it.
	return errors.Join(server.Shutdown(patience), locker.Shutdown(patience))
}

func router(locker *holdfast.Locker, stored *answers, out io.Writer) http.Handler {
	r := gin.New()
	r.Use(gin.Recovery(), gin.BasicAuth(gin.Accounts{"anna": "secret", "ben": "secret"})) // here goes your authentication
	// Clients choose their keys, and two clients might choose the same one, so the account is part of the lock's key. A request
	// without a key gets a 400. A repeat that arrives while the first request runs waits for a moment. It then gets a 409,
	// which says when to try again.
	request := ginlock.Parts(ginlock.Value(gin.AuthUserKey), ginlock.Header("Idempotency-Key"))
	r.POST("/orders", ginlock.New(locker, "create-order", request), func(c *gin.Context) { createOrder(c, stored, out) })
	return r
}
