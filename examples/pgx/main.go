// Pgx gives invoices numbers without gaps, with pgx and without database/sql: it reads the last number, and writes the
// next one, under a lock and a fence.
//
//	DATABASE_URL=postgres://... go run ./examples/pgx
//
// It needs a PostgreSQL, as pgx does. There it makes two tables whose names begin with holdfast_example_, and drops them
// at the end. Redis is embedded (miniredis), unless REDIS_ADDR names one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// issue is guarded by the token that ctx carries, that of the lock. The read is in the transaction too, behind the guard:
// no other holder can change the last number before this one has written the next. The function may run several times,
// and so counts nothing outside of the transaction.
func issue(ctx context.Context, pool *pgxpool.Pool, fence *sqlfence.Fence, customer string) (number int, err error) {
	err = sqlfence.WithPgx(ctx, fence, pool.Begin, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, "SELECT coalesce(max(number), 0) + 1 FROM holdfast_example_invoices").Scan(&number)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO holdfast_example_invoices (number, customer) VALUES ($1, $2)", number, customer)
		return err
	})
	return number, err
}

func run(ctx context.Context, out io.Writer) (err error) {
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		return errors.New("set DATABASE_URL to a PostgreSQL: postgres://user:password@host/database")
	}
	rdb, closeRedis, err := backend.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	fence, err := sqlfence.New(sqlfence.Postgres, sqlfence.WithTable("holdfast_example_fence"))
	if err != nil {
		return err
	}
	defer func() {
		_, dropErr := pool.Exec(context.WithoutCancel(ctx), "DROP TABLE IF EXISTS holdfast_example_invoices, holdfast_example_fence")
		err = errors.Join(err, dropErr)
	}()
	for _, statement := range []string{
		fence.DDL(), // in earnest, a migration
		// No primary key, to show that a number is not given twice without one. In earnest, have both.
		"CREATE TABLE IF NOT EXISTS holdfast_example_invoices (number int NOT NULL, customer text NOT NULL)",
	} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return play(ctx, out, locker, pool, fence)
}

func play(ctx context.Context, out io.Writer, locker *holdfast.Locker, pool *pgxpool.Pool, fence *sqlfence.Fence) error {
	// The token of a first holder, who will be paused until others have written.
	var paused sqlfence.Mark
	err := locker.Do(ctx, "invoices", func(ctx context.Context) error {
		lock := holdfast.Held(ctx)[0]
		paused = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}
		return nil
	})
	if err != nil {
		return err
	}

	errs := make([]error, 10)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = locker.Do(ctx, "invoices", func(ctx context.Context) error {
				number, err := issue(ctx, pool, fence, fmt.Sprint("customer ", i))
				if err == nil {
					fmt.Fprintln(out, "invoice", number)
				}
				return err
			})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}

	late := sqlfence.WithToken(ctx, paused.Resource, paused.Token)
	if _, err := issue(late, pool, fence, "somebody"); !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the paused holder was not refused: %v", err)
	}
	fmt.Fprintln(out, "the paused holder was refused: its token is stale")
	return nil
}
