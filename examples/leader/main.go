// Leader relays an outbox on one of three replicas: when the leader dies, the next one goes on.
//
//	go run ./examples/leader
//
// After two messages the leader's connection to Redis ends, as if it had been killed, and another replica leads once the lease
// of a second is over. Redis and the database are embedded (miniredis and SQLite), unless REDIS_ADDR names another Redis.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
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

func run(ctx context.Context, out io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
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
	_, err = db.ExecContext(ctx, fence.DDL()+"; CREATE TABLE outbox (id INTEGER PRIMARY KEY, sent_by TEXT);"+
		"INSERT INTO outbox (id) VALUES (1), (2), (3), (4), (5), (6)")
	if err != nil {
		return err
	}
	// relay is what the leader does. A message whose sending was not noted is sent again by the next one: who gets it must know
	// it by its id. A leader that was replaced cannot note anything any more: the fence has a larger token.
	relay := func(ctx context.Context, name string, sent func(id int)) error {
		for id := 0; ; sent(id) {
			err := db.QueryRowContext(ctx, "SELECT id FROM outbox WHERE sent_by IS NULL ORDER BY id LIMIT 1").Scan(&id)
			if errors.Is(err, sql.ErrNoRows) {
				return nil // this example is over, where a relay would wait for more
			}
			if err == nil {
				fmt.Fprintf(out, "%s sends message %d\n", name, id)
				err = fence.WithTx(ctx, db, nil, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, "UPDATE outbox SET sent_by = $1 WHERE id = $2", name, id)
					return err
				})
			}
			if err != nil {
				return err // the next replica leads at once
			}
		}
	}
	replica := func(name string) error {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		locker, err := holdfast.New(rdb, holdfast.WithTTL(time.Second), holdfast.WithLabel(name))
		if err != nil {
			return err
		}
		defer locker.Shutdown(context.Background())
		if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
			return err
		}
		return locker.Lead(ctx, "relay", func(ctx context.Context) error {
			return relay(ctx, name, func(id int) {
				if id == 2 { // the death of this replica: Redis hears of it no more
					rdb.Close()
					<-ctx.Done()
					fmt.Fprintf(out, "%s leads no more\n", name)
				}
			})
		})
	}
	errs := make(chan error, 3)
	for _, name := range []string{"one", "two", "three"} {
		go func() { errs <- replica(name) }()
	}
	err = errors.Join(<-errs, <-errs) // of those that live
	end()
	<-errs
	return err
}
