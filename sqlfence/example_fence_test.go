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

// In a table of its own name, and with more attempts for transactions that meet often.
func ExampleNew() {
	fence, err := sqlfence.New(sqlfence.Postgres, sqlfence.WithTable("locks.fence"), sqlfence.WithRetries(20))
	fmt.Println(fence != nil, err)
	// Output: true <nil>
}

// For a migration, or the start of the program.
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
	ctx := sqlfence.WithToken(context.Background(), "order:42", 7) // or the context of a lock

	err := fence.WithTx(ctx, db, &sql.TxOptions{}, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", 42)
		return err // every error of the database, or a deadlock is not repeated
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

// A token that another service passed on stands for its lock.
func ExampleWithToken() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)
	write := func(token int64) error {
		ctx := sqlfence.WithToken(context.Background(), "order:42", token)
		return fence.WithTx(ctx, db, nil, func(*sql.Tx) error { return nil })
	}

	fmt.Println(write(7))
	fmt.Println(write(6))
	// Output:
	// <nil>
	// sqlfence: token 6 for "order:42" is stale: the database has seen 7
}

// A holder that reads first, and outside of the guarded transaction, shuts out the one before: from here on it writes nothing.
func ExampleFence_Advance() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)
	ctx := context.Background()

	fmt.Println(fence.Advance(ctx, db, sqlfence.Mark{Resource: "order:42", Token: 8}))
	// ... read ...
	err := fence.Advance(ctx, db, sqlfence.Mark{Resource: "order:42", Token: 7}) // the holder before
	fmt.Println(errors.Is(err, sqlfence.ErrStale))
	// Output:
	// <nil>
	// true
}

// After an ErrCommitUnknown, and for monitoring.
func ExampleFence_Current() {
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.SQLite)
	ctx := context.Background()

	_ = fence.Advance(ctx, db, sqlfence.Mark{Resource: "order:42", Token: 7})
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

	_ = fence.Advance(ctx, db, sqlfence.Mark{Resource: "order:42", Token: 7})
	err := fence.Advance(ctx, db, sqlfence.Mark{Resource: "order:42", Token: 6})
	var stale *sqlfence.StaleError
	if errors.As(err, &stale) {
		fmt.Println(stale.Resource, stale.Token, stale.Current)
	}
	// Output: order:42 6 7
}

// A schema of its own, which has to be there; upper case counts, as the name is quoted.
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

// For a caller that would rather hear of a deadlock than have its function run again.
func ExampleWithRetries() {
	errDeadlock := errors.New("deadlock") // as a driver's, of SQLSTATE 40P01
	_, db := newFake()
	defer db.Close()
	ctx := sqlfence.WithToken(context.Background(), "order:42", 7)

	for _, retries := range []int{2, 0} {
		fence, _ := sqlfence.New(sqlfence.Postgres, sqlfence.WithRetries(retries),
			sqlfence.WithRetryable(func(err error) bool { return errors.Is(err, errDeadlock) }))
		attempts := 0
		err := fence.WithTx(ctx, db, nil, func(*sql.Tx) error {
			attempts++
			return errDeadlock
		})
		fmt.Println(attempts, err)
	}
	// Output:
	// 3 deadlock
	// 1 deadlock
}

// A driver whose errors this package does not know.
func ExampleWithRetryable() {
	errRestart := errors.New("restart transaction")
	fence, _ := sqlfence.New(sqlfence.Postgres, sqlfence.WithRetryable(func(err error) bool { return errors.Is(err, errRestart) }))
	_, db := newFake()
	defer db.Close()

	attempts := 0
	ctx := sqlfence.WithToken(context.Background(), "order:42", 7)
	err := fence.WithTx(ctx, db, nil, func(*sql.Tx) error {
		if attempts++; attempts < 3 {
			return errRestart
		}
		return nil
	})
	fmt.Println(attempts, err)
	// Output: 3 <nil>
}

// With pgx the first argument is pool.Begin, and tx a pgx.Tx.
func ExampleWithPgx() {
	pool, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)
	ctx := sqlfence.WithToken(context.Background(), "order:42", 7)

	err := sqlfence.WithPgx(ctx, fence, pool.beginPgx, func(tx fakePgx) error {
		return nil // tx.Exec(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", 42)
	})
	fmt.Println(err)
	// Output: <nil>
}

// For a transaction of pgx that is begun and committed elsewhere.
func ExampleGuardPgx() {
	pool, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)
	ctx := sqlfence.WithToken(context.Background(), "order:42", 7)

	tx, err := pool.beginPgx(ctx) // pool.Begin
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := sqlfence.GuardPgx(ctx, fence, tx); err != nil { // first of all
		fmt.Println(err) // and tx is rolled back
		return
	}
	fmt.Println(tx.Commit(ctx))
	// Output: <nil>
}

// What a stale holder gets, without a lock and without Redis: a smaller token is one.
func Example_unitTest() {
	_, db := newFake() // an SQLite in memory with one connection in a test
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.SQLite)
	pay := func(ctx context.Context) error {
		return fence.WithTx(ctx, db, nil, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = ?", 42)
			return err
		})
	}

	fmt.Println("held:", pay(sqlfence.WithToken(context.Background(), "order:42", 2)))
	fmt.Println("stale:", errors.Is(pay(sqlfence.WithToken(context.Background(), "order:42", 1)), sqlfence.ErrStale))
	fmt.Println("no lock:", errors.Is(pay(context.Background()), sqlfence.ErrNoToken))
	// Output:
	// held: <nil>
	// stale: true
	// no lock: true
}

// A nightly job holds one lock around the work on all orders. Its transactions run beside each other, in as many connections.
func ExampleWithParallel() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	_, db := newFake()
	defer db.Close()
	fence, _ := sqlfence.New(sqlfence.Postgres)

	err := locker.Do(context.Background(), "nightly", func(ctx context.Context) error {
		ctx = sqlfence.WithParallel(ctx)
		errs := make(chan error)
		for range 4 {
			go func() { errs <- fence.WithTx(ctx, db, nil, func(*sql.Tx) error { return nil }) }()
		}
		return errors.Join(<-errs, <-errs, <-errs, <-errs)
	})
	fmt.Println(err)
	// Output: <nil>
}

// Once a day, rows of holders from more than a week ago go.
func ExampleFence_Prune() {
	fence, _ := sqlfence.New(sqlfence.Postgres)
	prune := func(ctx context.Context, db *sql.DB) {
		deleted, err := fence.Prune(ctx, db, 7*24*time.Hour)
		fmt.Println(deleted, err)
	}
	_ = prune
}
