// Sql writes under a lock by database/sql, and has the database refuse what comes from a holder that is none any more.
//
//	go run ./examples/sql
//
// Redis and the database are embedded (miniredis and SQLite), unless REDIS_ADDR and DATABASE_URL name others:
// postgres://..., mysql://... (also MariaDB) or sqlite:///path/to/file. There it makes two tables whose names begin with
// holdfast_example_, and drops them at the end.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/sqlfence"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// shop is what a service has for as long as it runs.
type shop struct {
	locker *holdfast.Locker
	fence  *sqlfence.Fence
	db     *database
}

// setStatus is a write that only the current holder can make: the transaction takes the token from ctx, and the database
// compares it with the largest that it has seen. Everything that depends on the lock, reads too, belongs in the function.
// It may run several times, as a transaction that met a deadlock is repeated, and must do nothing but use tx.
func (s *shop) setStatus(ctx context.Context, order int, status string) error {
	return s.fence.WithTx(ctx, s.db.DB, nil, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.db.bind("UPDATE holdfast_example_orders SET status = ? WHERE id = ?"), status, order)
		return err
	})
}

func run(ctx context.Context, out io.Writer) (err error) {
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
	db, err := openDatabase()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	// All programs that write the same data must have the same table of guard rows.
	fence, err := sqlfence.New(db.dialect, sqlfence.WithTable("holdfast_example_fence"))
	if err != nil {
		return err
	}
	for _, statement := range []string{
		fence.DDL(), // in earnest, a migration
		"CREATE TABLE IF NOT EXISTS holdfast_example_orders (id INT PRIMARY KEY, status VARCHAR(20) NOT NULL)",
		"INSERT INTO holdfast_example_orders (id, status) VALUES (42, 'new')",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return (&shop{locker, fence, db}).play(ctx, out)
}

func (s *shop) play(ctx context.Context, out io.Writer) error {
	key := holdfast.Key("order", "42")

	// The first holder has another service cancel the order, and tells it the token. The message takes its time, as
	// messages do; so does a process that is paused.
	var message sqlfence.Mark
	err := s.locker.Do(ctx, key, func(ctx context.Context) error {
		lock := holdfast.Held(ctx)[0]
		message = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}
		return nil
	})
	if err != nil {
		return err
	}

	// The next holder pays.
	err = s.locker.Do(ctx, key, func(ctx context.Context) error { return s.setStatus(ctx, 42, "paid") })
	switch {
	case errors.Is(err, sqlfence.ErrCommitUnknown):
		return fmt.Errorf("perhaps it is paid: read it before you try again: %w", err)
	case err != nil:
		return err // nothing was written
	}

	// Now the message arrives, at a service that cannot know what happened since.
	late := sqlfence.WithToken(ctx, message.Resource, message.Token)
	if err := s.setStatus(late, 42, "cancelled"); !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the late message was not refused: %v", err)
	}
	fmt.Fprintln(out, "the late message was refused: its token is stale")

	var status string
	if err := s.db.QueryRowContext(ctx, "SELECT status FROM holdfast_example_orders WHERE id = 42").Scan(&status); err != nil {
		return err
	}
	fmt.Fprintln(out, "order 42 is", status)
	return nil
}
