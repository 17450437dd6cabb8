// Transfer moves money between accounts, under the locks of both, in any direction at once.
//
//	go run ./examples/transfer
//
// It prints how many transfers were made, and the sum of the accounts, which none of them changes. Redis and the database are
// embedded (miniredis and SQLite in memory), unless REDIS_ADDR names another Redis.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" { // a Redis inside of this process, to try it out
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true) // leases end as time goes by
		if err := server.Start(); err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker, err := holdfast.New(rdb, holdfast.WithWait(10*time.Second)) // bounds the wait for both accounts together
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(ctx)) }()

	db, err := sql.Open("sqlite", ":memory:") // a file would need ?_txlock=immediate&_pragma=busy_timeout(10000)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // for SQLite in memory, where each connection would be a database of its own
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, fence.DDL()+"; CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INT);"+
		"INSERT INTO accounts VALUES ('ann', 100), ('bob', 100), ('eve', 100)")
	if err != nil {
		return err
	}

	// transfer holds the locks of both accounts, whichever comes first. The context has both, and the fence guards both: if
	// either was lost to another holder, the database refuses the whole.
	transfer := func(ctx context.Context, from, to string, amount int) error {
		keys := []string{holdfast.Key("account", from), holdfast.Key("account", to)}
		return locker.DoAll(ctx, keys, func(ctx context.Context) error {
			return fence.WithTx(ctx, db, nil, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - $1 WHERE id = $2", amount, from)
				if err == nil {
					_, err = tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", amount, to)
				}
				return err
			})
		})
	}
	// In a circle, and back: locks taken in the order of the arguments would wait for each other for ever.
	ways := [][2]string{{"ann", "bob"}, {"bob", "eve"}, {"eve", "ann"}, {"bob", "ann"}, {"eve", "bob"}, {"ann", "eve"}}
	errs := make(chan error, 10*len(ways))
	var all sync.WaitGroup
	for i := range cap(errs) {
		way := ways[i%len(ways)]
		all.Go(func() { errs <- transfer(ctx, way[0], way[1], 1+i%7) })
	}
	all.Wait()
	for range cap(errs) {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	var sum int
	err = db.QueryRowContext(ctx, "SELECT sum(balance) FROM accounts").Scan(&sum)
	fmt.Fprintf(out, "%d transfers, and the accounts have %d together\n", cap(errs), sum)
	return err
}
