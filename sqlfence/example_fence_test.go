package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// Use another table, and more repeats for transactions that often meet.
func ExampleNew() {
	fence, err := sqlfence.New(sqlfence.Postgres, sqlfence.WithTable("locks.fence"), sqlfence.WithRetries(20))
	fmt.Println(fence != nil, err)
	// Output: true <nil>
}

// Run the statement in a migration, or when the program starts.
func ExampleFence_DDL() {
	fence, _ := sqlfence.New(sqlfence.SQLite)
	fmt.Println(fence.DDL())
	// Output:
	// CREATE TABLE IF NOT EXISTS `sqlfence` (
	//   resource TEXT NOT NULL PRIMARY KEY,
	//   token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0)
	// ) WITHOUT ROWID
}

func ExampleFence_WithTx() {
	_, db := newFake() // sql.Open with the driver of your database
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)
	ctx := sqlfence.Mark{Resource: "order:42", Token: 7}.In(context.Background()) // or the context of a lock

	err := fence.WithTx(ctx, db, &sql.TxOptions{}, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", 42)
		return err // return every error of the database, so that WithTx can repeat after a deadlock
	})
	switch {
	case errors.Is(err, sqlfence.ErrStale):
		fmt.Println("somebody else has the lock, nothing was written")
	case errors.Is(err, sqlfence.ErrCommitUnknown):
		fmt.Println("look whether it was written")
	default:
		fmt.Println(err)
	}
	// Output: <nil>
}

// Use a token that another service passed on, without its lock.
func ExampleMark_In() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)
	write := func(token int64) error {
		ctx := sqlfence.Mark{Resource: "order:42", Token: token}.In(context.Background())
		return fence.WithTx(ctx, db, nil, func(context.Context, *sql.Tx) error { return nil })
	}

	fmt.Println(write(7))
	fmt.Println(write(6))
	// Output:
	// <nil>
	// sqlfence: token 6 for "order:42" is stale: the database has seen 7
}

// A holder that reads before its first guarded transaction calls Advance. From then on the holder before it cannot write.
func ExampleFence_Advance() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)
	ctx := context.Background()

	fmt.Println(fence.Advance(sqlfence.Mark{Resource: "order:42", Token: 8}.In(ctx), db))
	// ... read ...
	err := fence.Advance(sqlfence.Mark{Resource: "order:42", Token: 7}.In(ctx), db) // the holder before
	fmt.Println(errors.Is(err, sqlfence.ErrStale))
	// Output:
	// <nil>
	// true
}

// Look up the newest token after an ErrCommitUnknown, or for monitoring.
func ExampleFence_Current() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.SQLite)
	ctx := context.Background()

	_ = fence.Advance(sqlfence.Mark{Resource: "order:42", Token: 7}.In(ctx), db)
	fmt.Println(fence.Current(ctx, db, "order:42"))
	fmt.Println(fence.Current(ctx, db, "order:43"))
	// Output:
	// 7 <nil>
	// 0 <nil>
}

func ExampleStaleError() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.MySQL)
	ctx := context.Background()

	_ = fence.Advance(sqlfence.Mark{Resource: "order:42", Token: 7}.In(ctx), db)
	err := fence.Advance(sqlfence.Mark{Resource: "order:42", Token: 6}.In(ctx), db)
	var stale *sqlfence.StaleError
	if errors.As(err, &stale) {
		fmt.Println(stale.Resource, stale.Token, stale.Current)
	}
	// Output: order:42 6 7
}

// The schema must exist. Upper case matters if it does to the database, because the name is quoted.
func ExampleWithTable() {
	fence, err := sqlfence.New(sqlfence.MySQL, sqlfence.WithTable("locks.fence"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.SplitN(fence.DDL(), "\n", 2)[0])

	_, err = sqlfence.New(sqlfence.MySQL, sqlfence.WithTable("fence; DROP TABLE orders"))
	fmt.Println(errors.Is(err, holdfast.ErrInvalid))
	// Output:
	// CREATE TABLE IF NOT EXISTS `locks`.`fence` (
	// true
}

// With WithRetries(0), WithTx returns a deadlock, and does not run its function again.
func ExampleWithRetries() {
	errDeadlock := errors.New("deadlock") // like a driver's error with SQLSTATE 40P01
	_, db := newFake()
	defer db.Close()
	ctx := sqlfence.Mark{Resource: "order:42", Token: 7}.In(context.Background())

	for _, retries := range []int{2, 0} {
		fence, _ := sqlfence.New(sqlfence.Postgres, sqlfence.WithRetries(retries,
			func(err error) bool { return errors.Is(err, errDeadlock) })) // for a driver that this package does not know
		attempts := 0
		err := fence.WithTx(ctx, db, nil, func(context.Context, *sql.Tx) error {
			attempts++
			return errDeadlock
		})
		fmt.Println(attempts, err)
	}
	// Output:
	// 3 deadlock
	// 1 deadlock
}

// Test what a stale holder gets, without a lock and without Redis: a smaller token makes a stale holder.
func Example_unitTest() {
	_, db := newFake() // in a test, SQLite in memory with one connection
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.SQLite)
	pay := func(ctx context.Context) error {
		return fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = ?", 42)
			return err
		})
	}

	fmt.Println("held:", pay(sqlfence.Mark{Resource: "order:42", Token: 2}.In(context.Background())))
	fmt.Println("stale:", errors.Is(pay(sqlfence.Mark{Resource: "order:42", Token: 1}.In(context.Background())), sqlfence.ErrStale))
	fmt.Println("no lock:", errors.Is(pay(context.Background()), sqlfence.ErrNoToken))
	// Output:
	// held: <nil>
	// stale: true
	// no lock: true
}

// A nightly job holds one lock around the work on all orders. Its transactions run in parallel, each on its own connection.
func ExampleMark_In_parallel() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)

	err := locker.Do(context.Background(), "nightly", func(ctx context.Context) error {
		lock := holdfast.Held(ctx)[0]
		ctx = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token(), Parallel: true}.In(ctx)
		errs := make(chan error)
		for range 4 {
			go func() { errs <- fence.WithTx(ctx, db, nil, func(context.Context, *sql.Tx) error { return nil }) }()
		}
		return errors.Join(<-errs, <-errs, <-errs, <-errs)
	})
	fmt.Println(err)
	// Output: <nil>
}

// Once a day, delete the rows of holders that acquired their locks more than a week ago.
func ExampleFence_Prune() {
	fence, _ := sqlfence.New(sqlfence.Postgres)
	prune := func(ctx context.Context, db *sql.DB) {
		deleted, err := fence.Prune(ctx, db, 7*24*time.Hour)
		fmt.Println(deleted, err)
	}
	_ = prune
}
