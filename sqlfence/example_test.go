package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

// newExampleLocker returns a Locker on a Redis inside the process.
func newExampleLocker() (locker *holdfast.Locker, closeAll func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	if locker, err = holdfast.New(rdb); err != nil {
		panic(err)
	}
	return locker, func() {
		_ = locker.Shutdown(context.Background())
		_ = rdb.Close()
		server.Close()
	}
}

func Example() {
	locker, closeAll := newExampleLocker() // holdfast.New(rdb)
	defer closeAll()
	_, db := newFake() // sql.Open with the driver of your database
	defer db.Close()
	fence, err := sqlfence.New(sqlfence.Postgres) // or MySQL, or SQLite
	if err != nil {
		panic(err)
	}

	key := holdfast.Key("order", "42")
	ctx := context.Background()

	var stale context.Context // of a holder that is paused past its lease
	_ = locker.Do(ctx, key, func(ctx context.Context) error {
		lock := holdfast.Held(ctx)[0]
		stale = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}.In(context.Background())
		return nil
	})

	err = locker.Do(ctx, key, func(ctx context.Context) error {
		return fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", 42)
			return err
		})
	})
	fmt.Println("the current holder:", err)

	err = fence.WithTx(stale, db, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'open' WHERE id = $1", 42)
		return err
	})
	fmt.Println("the one before is stale:", errors.Is(err, sqlfence.ErrStale))
	// Output:
	// the current holder: <nil>
	// the one before is stale: true
}

// Guard a transaction that other code begins and commits.
func ExampleFence_Guard() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.MySQL)
	ctx := sqlfence.Mark{Resource: "order:42", Token: 7}.In(context.Background()) // or the context of a lock

	tx, _ := db.BeginTx(ctx, nil)
	if err := fence.Guard(ctx, tx); err != nil { // the first statement
		fmt.Println(err) // tx has been rolled back
		return
	}
	_, _ = tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = ?", 42)
	fmt.Println(tx.Commit())

	tx, _ = db.BeginTx(ctx, nil)
	fmt.Println(fence.Guard(sqlfence.Mark{Resource: "order:42", Token: 6}.In(ctx), tx))
	fmt.Println(tx.Commit())
	// Output:
	// <nil>
	// sqlfence: token 6 for "order:42" is stale: the database has seen 7
	// sql: transaction has already been committed or rolled back
}
