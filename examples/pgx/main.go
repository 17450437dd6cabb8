// Pgx writes under a lock with pgx, without database/sql. It gives invoices numbers without gaps, and PostgreSQL refuses a
// late write of a holder that has lost the lock.
//
//	DATABASE_URL=postgres://... go run ./examples/pgx
//
// It prints ten numbers, and that the late invoice was refused. It makes two tables whose names begin with
// holdfast_example_, and drops them at the end. Redis is embedded (miniredis), unless REDIS_ADDR names one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/pgxfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	addr, database := os.Getenv("REDIS_ADDR"), os.Getenv("DATABASE_URL")
	if database == "" {
		return errors.New("set DATABASE_URL to a PostgreSQL: postgres://user:password@host/database")
	}
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
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	fence, err := sqlfence.New(sqlfence.Postgres, sqlfence.WithTable("holdfast_example_fence"))
	if err != nil {
		return err
	}
	defer pool.Exec(ctx, "DROP TABLE IF EXISTS holdfast_example_invoices, holdfast_example_fence")
	// In a real service, a migration does this, with a primary key. Without the key, a number given twice would show here.
	if _, err := pool.Exec(ctx, fence.DDL()+"; CREATE TABLE IF NOT EXISTS holdfast_example_invoices (number int)"); err != nil {
		return err
	}

	// issue is guarded by the token in ctx. The read is in the transaction too, after the guard, so no other holder changes the
	// last number before this one has written the next. After a deadlock the function runs again.
	issue := func(ctx context.Context) error {
		var number int
		err := pgxfence.WithTx(ctx, fence, pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			err := tx.QueryRow(ctx, "SELECT coalesce(max(number), 0) + 1 FROM holdfast_example_invoices").Scan(&number)
			if err == nil {
				_, err = tx.Exec(ctx, "INSERT INTO holdfast_example_invoices VALUES ($1)", number)
			}
			return err
		})
		if err == nil {
			fmt.Fprintln(out, "invoice", number)
		}
		return err
	}
	// A first holder is paused before it writes. Its lease expires, which a release stands for, and ten others issue invoices.
	first, err := locker.Acquire(ctx, "invoices")
	if err == nil {
		err = first.Release(ctx)
	}
	errs := make(chan error, 10)
	for range 10 {
		go func() { errs <- locker.Do(ctx, "invoices", issue) }()
	}
	for range 10 {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return err
	}
	// The first holder wakes up with its old token.
	late := sqlfence.Mark{Resource: first.Key(), Token: first.Token()}.In(ctx)
	if err := issue(late); !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the late invoice was not refused: %v", err)
	}
	fmt.Fprintln(out, "the late invoice was refused")
	return nil
}
