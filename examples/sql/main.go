// Sql writes under a lock with database/sql, and the database refuses a late write of a holder that has lost the lock.
//
//	go run ./examples/sql
//
// It prints that the late write was refused, and the status of the order after that. Redis and the database are embedded
// (miniredis and SQLite in memory), unless REDIS_ADDR and DATABASE_URL (postgres://...) name others. In the database it
// makes two tables whose names begin with holdfast_example_, and drops them at the end.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
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
	defer func() { err = errors.Join(err, locker.Shutdown(ctx)) }()

	driver, url, dialect := "pgx", os.Getenv("DATABASE_URL"), sqlfence.Postgres
	if url == "" { // a file would need ?_txlock=immediate&_pragma=busy_timeout(10000)
		driver, url, dialect = "sqlite", ":memory:", sqlfence.SQLite
	}
	db, err := sql.Open(driver, url)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // for SQLite in memory, where each connection would be a database of its own
	// All programs that write the same data must have the same table for the fence.
	fence, err := sqlfence.New(dialect, sqlfence.WithTable("holdfast_example_fence"))
	if err != nil {
		return err
	}
	defer db.Exec("DROP TABLE IF EXISTS holdfast_example_orders; DROP TABLE IF EXISTS holdfast_example_fence")
	// In a real service, a migration does this.
	_, err = db.ExecContext(ctx, fence.DDL()+"; CREATE TABLE holdfast_example_orders (id INT PRIMARY KEY, status VARCHAR(20));"+
		"INSERT INTO holdfast_example_orders VALUES (42, 'new')")
	if err != nil {
		return err
	}

	// setStatus writes what only the current holder is allowed to write: WithTx takes the token from ctx, and the database
	// compares it with the largest that it has seen. Everything that depends on the lock belongs in the function, reads too.
	// After a deadlock the function runs again, so it must do nothing but use tx.
	setStatus := func(ctx context.Context, status string) error {
		return fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE holdfast_example_orders SET status = $1 WHERE id = $2", status, 42)
			return err
		})
	}
	// A first holder is paused before it writes. Its lease expires, which a release stands for, and the next holder pays.
	first, err := locker.Acquire(ctx, "order:42")
	if err == nil {
		err = errors.Join(first.Release(ctx), locker.Do(ctx, "order:42", func(ctx context.Context) error {
			return setStatus(ctx, "paid")
		}))
	}
	if err != nil { // if it matches sqlfence.ErrCommitUnknown, read whether the order is paid
		return err
	}
	// The first holder wakes up with its old token, and cannot know what has happened since.
	late := sqlfence.Mark{Resource: first.Key(), Token: first.Token()}.In(ctx)
	if err := setStatus(late, "cancelled"); !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the late write was not refused: %v", err)
	}
	var status string
	err = db.QueryRowContext(ctx, "SELECT status FROM holdfast_example_orders WHERE id = 42").Scan(&status)
	fmt.Fprintf(out, "the late write was refused, and order 42 is %s\n", status)
	return err
}
