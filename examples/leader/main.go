// Leader relays an outbox. Of three replicas, each a process of its own, one at a time does the work.
//
//	go run ./examples/leader
//
// The first leader is killed and the second is paused. It prints which replica sends which row, who takes over, and that the
// paused leader was refused after its successor wrote. Redis and the database are embedded (miniredis and a SQLite file),
// unless REDIS_ADDR names a Redis. The program sets REPLICA for the replicas that it starts.
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

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

func main() {
	act := run // starts the replicas, see own.go
	if os.Getenv("REPLICA") != "" {
		act = replica
	}
	if err := act(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// replica stands for election, and relays while it leads.
func replica(ctx context.Context, out io.Writer) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	defer rdb.Close()
	// After a crash the next replica leads once the lease has expired. The label lets Inspect return who leads.
	locker, err := holdfast.New(rdb, holdfast.WithTTL(2*time.Second), holdfast.WithLabel(os.Getenv("REPLICA")))
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(ctx)) }()
	db, err := sql.Open("sqlite", os.Getenv("OUTBOX"))
	if err != nil {
		return err
	}
	defer db.Close()
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		return err
	}
	r := &relay{db, fence, os.Getenv("REPLICA"), out}
	return locker.Lead(ctx, "outbox", func(ctx context.Context) error {
		for ctx.Err() == nil {
			row, err := r.send(ctx)
			if err != nil {
				return err // Lead releases the lock, and stands for election again after a pause
			}
			switch row {
			case "": // nothing to send
				time.Sleep(20 * time.Millisecond)
			case "pause": // see own.go
				return r.pause(ctx)
			}
		}
		return ctx.Err() // the leadership is lost: Lead stands for election again
	})
}

type relay struct {
	db    *sql.DB
	fence *sqlfence.Fence
	name  string
	out   io.Writer
}

// send sends the first row. If a leader dies before the commit, the next one sends the row again, so a receiver must
// recognize rows by their id. A leader that was replaced cannot commit.
func (r *relay) send(ctx context.Context) (row string, err error) {
	err = r.fence.WithTx(ctx, r.db, nil, func(ctx context.Context, tx *sql.Tx) error {
		var id int
		err := tx.QueryRowContext(ctx, "SELECT id, row FROM outbox WHERE sent_by IS NULL ORDER BY id LIMIT 1").Scan(&id, &row)
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "%s sends row %d\n", r.name, id)
		_, err = tx.ExecContext(ctx, "UPDATE outbox SET sent_by = ? WHERE id = ?", r.name, id)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return row, err
}
