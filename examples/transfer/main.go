// Transfer moves money between two accounts under the locks of both, and the database refuses a late transfer.
//
//	go run ./examples/transfer
//
// Transfers go both ways at once and never deadlock. It prints that a transfer with old tokens was refused, and what the
// accounts have in the end. Redis and the database are embedded (miniredis and SQLite in memory), unless REDIS_ADDR names a
// Redis.
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

	db, err := sql.Open("sqlite", ":memory:") // a file would need ?_txlock=immediate&_pragma=busy_timeout(10000)
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
	_, err = db.ExecContext(ctx, fence.DDL()+"; CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INT);"+
		"INSERT INTO accounts VALUES ('anna', 10000), ('ben', 10000)")
	if err != nil {
		return err
	}

	// move writes what only the current holder of all locks in ctx is allowed to write: WithTx compares the token of each.
	move := func(ctx context.Context, from, to string, cents int) error {
		return fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET cents = cents + CASE id WHEN ? THEN -? ELSE ? END WHERE id IN (?, ?)", from, cents, cents, from, to)
			return err
		})
	}
	transfer := func(from, to string, cents int) error {
		keys := []string{holdfast.Key("account", from), holdfast.Key("account", to)} // in any order
		return locker.DoAll(ctx, keys, func(ctx context.Context) error { return move(ctx, from, to, cents) })
	}
	var all sync.WaitGroup
	names, errs := []string{"anna", "ben"}, make([]error, 20)
	for i := range errs {
		all.Go(func() { errs[i] = transfer(names[i%2], names[(i+1)%2], 300-200*(i%2)) })
	}
	all.Wait()
	// Another holder is paused before it writes. Its leases expire, which the end of DoAll stands for, and the next one writes.
	late := ctx
	err = locker.DoAll(ctx, []string{"account:anna", "account:ben"}, func(ctx context.Context) error {
		for _, lock := range holdfast.Held(ctx) {
			late = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}.In(late)
		}
		return nil
	})
	if err := errors.Join(append(errs, err, transfer("anna", "ben", 0))...); err != nil {
		return err
	}
	if err := move(late, "anna", "ben", 5000); !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the late transfer was not refused: %v", err)
	}
	var anna, ben int
	err = db.QueryRowContext(ctx, "SELECT (SELECT cents FROM accounts WHERE id = 'anna'), (SELECT cents FROM accounts WHERE id = 'ben')").Scan(&anna, &ben)
	fmt.Fprintf(out, "the late transfer was refused; anna has %d cents, ben has %d\n", anna, ben)
	return err
}
