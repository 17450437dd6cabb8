package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// DB begins transactions: [*sql.DB], [*sql.Conn] and types that embed them.
type DB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// WithTx runs fn in a guarded transaction and commits it. Unless WithTx returns nil or an [ErrCommitUnknown], nothing of it is
// in the database, provided that fn keeps the rules below. fn reads all that earlier holders have committed.
//
// WithTx repeats a transaction that the database broke off (a deadlock, a serialization failure, a lock timeout, a busy
// SQLite), see [WithRetries]. So fn may run several times, and must leave nothing outside of the transaction. fn must return
// every error of the database, wrapped or not: MySQL ends the transaction at a deadlock, and SQLite at a write that was
// interrupted, and statements after that are committed one by one. On MySQL, WithTx finds out before COMMIT that the
// transaction has ended, by such an error or by a statement that commits by itself (DDL above all), and reports an
// [ErrCommitUnknown]; what ran after the end is written already. It takes a savepoint for that, which costs two round trips.
// fn must neither commit nor roll back.
//
// If fn panics the transaction is rolled back and the panic goes on. A WithTx within fn for the same lock waits for
// itself. Keep fn short: the guarded transactions of one resource run one after the other. The context bounds the wait for
// them, and so does the database, see [Dialect].
//
// Before COMMIT WithTx looks at the locks in ctx and at ctx itself once more. Pass the lock's context: then a
// loss also breaks off the statements. The marks come from ctx, as with [Fence.Guard]; for a token by itself
// use [WithToken]. opts may be nil.
//
// Errors: those of Guard; [ErrCommitUnknown]; fn's error, as it is; else the database's error.
func (f *Fence) WithTx(ctx context.Context, db DB, opts *sql.TxOptions, fn func(tx *sql.Tx) error) error {
	if fn == nil {
		return invalid("nil function")
	}
	all, err := f.begins(ctx, db, opts, nil)
	if err != nil {
		return err
	}
	return f.repeat(ctx, f.retryable, func() error { return f.once(ctx, db, opts, all, f.kept(ctx, fn)) })
}

// kept is fn within a savepoint where the database ends a transaction under a caller that takes no notice: MySQL at a
// deadlock, and at a statement that commits by itself. What runs after that is committed statement by statement, without
// the guard, and COMMIT has nothing to say about it. The savepoint is then gone as well.
func (f *Fence) kept(ctx context.Context, fn func(tx *sql.Tx) error) func(tx *sql.Tx) error {
	if f.dialect != MySQL {
		return fn
	}
	return func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SAVEPOINT sqlfence_guard"); err != nil {
			return because(ctx, failed("savepoint", err))
		}
		if err := fn(tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT sqlfence_guard")
		switch {
		case err == nil:
			return nil
		case find(err, func(err error) bool { return number(err, "Number") == 1305 }):
			err = &unknownError{fmt.Errorf("the transaction ended before its COMMIT, by an ignored deadlock or a statement that commits by itself; what ran after that was not guarded: %w", err)}
		default:
			err = failed("release savepoint", err)
		}
		return because(ctx, err)
	}
}

// Advance raises the guard rows in a transaction of their own, for the locks and tokens of ctx or for marks. Until a holder's
// first commit the holder before it can still write. So a holder that reads before it writes, and outside of WithTx, calls
// Advance right after it has acquired the lock and before it reads. From then on no guarded writer changes what it reads.
// Advance is repeated like WithTx, also when the outcome of a commit is unknown, which does no harm here.
//
// Errors: those of [Fence.WithTx].
func (f *Fence) Advance(ctx context.Context, db DB, marks ...Mark) error {
	all, err := f.begins(ctx, db, nil, marks)
	if err != nil {
		return err
	}
	again := func(err error) bool { return f.retryable(err) || errors.Is(err, ErrCommitUnknown) }
	return f.repeat(ctx, again, func() error {
		return f.once(ctx, db, nil, all, func(*sql.Tx) error { return nil })
	})
}

// BeginTx begins a transaction and guards it by the locks and tokens of ctx, or by marks: for a library that commits by itself.
// End it with [Fence.Commit], or roll it back. Nothing is repeated. opts may be nil.
//
// Errors: those of [Fence.Guard]. The transaction is then over, and the one returned is nil.
func (f *Fence) BeginTx(ctx context.Context, db DB, opts *sql.TxOptions, marks ...Mark) (*sql.Tx, error) {
	all, err := f.begins(ctx, db, opts, marks)
	if err != nil {
		return nil, err
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return nil, because(ctx, failed("begin", err))
	}
	if err := f.Guard(ctx, tx, all...); err != nil {
		return nil, err
	}
	return tx, nil
}

func (f *Fence) begins(ctx context.Context, db DB, opts *sql.TxOptions, explicit []Mark) ([]Mark, error) {
	switch {
	case isNil(db):
		return nil, invalid("nil database")
	case opts != nil && opts.ReadOnly:
		return nil, invalid("a guard writes, the transaction is read-only")
	}
	return f.prepare(ctx, explicit)
}

// once is one attempt. It ends the transaction however fn ends, a panic and runtime.Goexit included.
func (f *Fence) once(ctx context.Context, db DB, opts *sql.TxOptions, all []Mark, fn func(*sql.Tx) error) error {
	if err := live(ctx); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return because(ctx, failed("begin", err))
	}
	defer func() { _ = tx.Rollback() }() // nothing after a commit
	if err := f.Guard(ctx, tx, all...); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	// Drivers disagree on what COMMIT does under a context that has ended, so it does not come to that.
	if err := live(ctx); err != nil {
		return err
	}
	return f.committed(tx.Commit())
}

const (
	firstPause = 2 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// repeat runs attempt until it succeeds or fails for good.
func (f *Fence) repeat(ctx context.Context, again func(error) bool, attempt func() error) error {
	pause := firstPause
	for n := 0; ; n++ {
		err := attempt()
		if err == nil || n >= f.retries || !again(err) {
			return err
		}
		// At least half of the pause, so that there is one, and a random half, so that transactions that collided part.
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w; not repeated: %w", err, live(ctx))
		}
		pause = min(2*pause, lastPause)
	}
}
