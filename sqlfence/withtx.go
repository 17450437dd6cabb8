package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
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
// every error of the database, wrapped or not, unless it knows that the transaction goes on: after a duplicate key, say, on
// PostgreSQL behind a savepoint of fn's own. MySQL ends the transaction at a deadlock, and SQLite at a write that was
// interrupted, and statements after that are committed one by one. [sql.ErrNoRows] is not an error of the database. fn must
// neither commit nor roll back.
//
// On MySQL, WithTx finds out when fn returns that the transaction has ended, by such an error or by a statement that commits by
// itself (DDL above all), and reports an [ErrCommitUnknown]; what ran before that statement, or after the end, is written
// already. It takes a savepoint for that, which costs two round trips. It does not find out once the context has ended, nor
// where a deadlock follows such a statement: that is repeated. With innodb_rollback_on_timeout a lock timeout in fn, which ends
// the transaction then, is an ErrCommitUnknown and not repeated.
//
// If fn panics the transaction is rolled back and the panic goes on. A WithTx within fn for the same lock waits for
// itself. Keep fn short: the guarded transactions of one resource run one after the other, but for those of one holder with
// [WithParallel]. The context bounds the wait for them, and so does the database, see [Dialect].
//
// Before COMMIT WithTx looks at the locks in ctx and at ctx itself once more. Pass the lock's context: then a
// loss also breaks off the statements. All locks and tokens of ctx are guarded, unless marks are given: then those alone. For a
// token by itself there is [WithToken]. opts may be nil.
//
// Errors: those of Guard; [ErrCommitUnknown]; fn's error, as it is; else the database's error.
func (f *Fence) WithTx(ctx context.Context, db DB, opts *sql.TxOptions, fn func(tx *sql.Tx) error, marks ...Mark) error {
	if fn == nil {
		return invalid("nil function")
	}
	all, err := f.begins(ctx, db, opts, marks)
	if err != nil {
		return err
	}
	return with(ctx, f, beginSQL(ctx, db, opts), fn, all, f.retryable)
}

// With is [Fence.WithTx] for a library with transactions of its own. begin starts one and returns it in both its forms:
//
//	// sqlx
//	func(ctx context.Context) (*sqlx.Tx, sqlfence.Tx, error) {
//		tx, err := db.BeginTxx(ctx, nil)
//		return tx, tx, err
//	}
//	// bun
//	func(ctx context.Context) (bun.Tx, sqlfence.Tx, error) {
//		tx, err := db.BeginTx(ctx, nil)
//		return tx, tx.Tx, err
//	}
//	// gorm; or see package gormfence
//	func(ctx context.Context) (*gorm.DB, sqlfence.Tx, error) {
//		tx := db.WithContext(ctx).Begin()
//		if tx.Error != nil {
//			return nil, nil, tx.Error
//		}
//		return tx, tx.Statement.ConnPool.(sqlfence.Tx), nil
//	}
//
// ent's is sqlx's, with the feature sql/execquery. With commits and rolls back by the Tx, and calls begin again for each
// attempt. begin must not start a savepoint, whose Commit commits nothing.
func With[T any](ctx context.Context, f *Fence, begin func(context.Context) (T, Tx, error), fn func(tx T) error, marks ...Mark) error {
	if begin == nil || fn == nil {
		return invalid("nil function")
	}
	all, err := f.prepare(ctx, marks)
	if err != nil {
		return err
	}
	return with(ctx, f, func() (T, conn, error) {
		t, tx, err := begin(ctx)
		switch {
		case err != nil:
			return t, conn{}, err
		case isNil(tx):
			return t, conn{}, invalid("begin returned a nil transaction")
		}
		return t, plain(ctx, tx), nil
	}, fn, all, f.retryable)
}

// BeginTx begins a transaction and guards it, by all locks and tokens of ctx or by marks: for code that commits by itself. It
// is the begin of db and [Fence.Guard] in one, and for [WithParallel] the Advance before. End it with [Fence.Commit], or roll it
// back. Nothing is repeated. opts may be nil.
//
// Errors: those of Guard; no transaction is open then.
func (f *Fence) BeginTx(ctx context.Context, db DB, opts *sql.TxOptions, marks ...Mark) (*sql.Tx, error) {
	all, err := f.begins(ctx, db, opts, marks)
	if err != nil {
		return nil, err
	}
	tx, _, err := start(ctx, f, beginSQL(ctx, db, opts), all)
	return tx, err
}

// Commit commits a transaction that [Fence.BeginTx] or [Fence.Guard] has guarded, or that [Fence.ExecRow] wrote in, as
// [Fence.WithTx] does: it looks at the locks in ctx and at ctx itself once more, and rolls tx back where one of them is over;
// and it tells a COMMIT whose outcome is unknown from one that failed. ctx is that of the guard.
//
// On MySQL WithTx finds out that the transaction had ended before; Commit does not.
//
// Errors: [holdfast.ErrLost] for a lock of ctx that is over, and the context's error, with which nothing is written;
// [ErrCommitUnknown]; [holdfast.ErrInvalid]; else the database's error.
func (f *Fence) Commit(ctx context.Context, tx Tx) error {
	switch {
	case f == nil || f.dialect == 0:
		return invalid("a Fence that New did not make")
	case ctx == nil:
		return invalid("nil context")
	case isNil(tx):
		return invalid("nil transaction")
	}
	if err := live(ctx); err != nil {
		return rolledBack(err, tx.Rollback)
	}
	return f.committed(tx.Commit())
}

// Advance raises the guard rows in a transaction of their own, for the locks and tokens of ctx or for marks. Until a
// holder's first commit the holder before it can still write. So a holder that reads before it writes, and outside of
// WithTx, calls Advance right after it has acquired the lock and before it reads. From then on no guarded writer with an
// older token changes what it reads. Advance is repeated like WithTx, also when the outcome of a commit is unknown, which
// does no harm here.
//
// Errors: those of [Fence.WithTx].
func (f *Fence) Advance(ctx context.Context, db DB, marks ...Mark) error {
	all, err := f.begins(ctx, db, nil, marks)
	if err != nil {
		return err
	}
	again := func(err error) bool { return f.retryable(err) || errors.Is(err, ErrCommitUnknown) }
	return with(ctx, f, blind(beginSQL(ctx, db, nil)), func(*sql.Tx) error { return nil }, alone(all), again)
}

func beginSQL(ctx context.Context, db DB, opts *sql.TxOptions) func() (*sql.Tx, conn, error) {
	return func() (*sql.Tx, conn, error) {
		tx, err := db.BeginTx(ctx, opts)
		if err != nil {
			return nil, conn{}, err
		}
		return tx, plain(ctx, tx), nil
	}
}

// blind begins transactions that read nothing.
func blind[T any](begin func() (T, conn, error)) func() (T, conn, error) {
	return func() (T, conn, error) {
		t, c, err := begin()
		c.blind = true
		return t, c, err
	}
}

// alone are marks that wait for everybody.
func alone(marks []Mark) []Mark {
	all := slices.Clone(marks)
	for i := range all {
		all[i].Parallel = false
	}
	return all
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

// start begins a guarded transaction.
func start[T any](ctx context.Context, f *Fence, begin func() (T, conn, error), all []Mark) (T, conn, error) {
	t, c, err := open(ctx, f, begin, all)
	for raises, anew := 0, 0; ; {
		var behind *behindError
		if !errors.As(err, &behind) {
			return t, c, err
		}
		// Once for each row, unless it went in between.
		switch {
		case raises == len(all) || anew == len(all):
			return t, c, &goneError{behind}
		case behind.snapshot:
			anew++
			t, c, err = open(ctx, f, begin, all)
		default:
			raises++
			t, c, err = raised(ctx, f, begin, all, behind)
		}
	}
}

// raised begins it after it has raised a row that is behind. That one alone: to raise another is to wait for all who share it.
// To raise what others share, from a share, is to wait for one that waits for us. So this one has let go. Of the calls that find
// the row behind one raises it: another would wait for the first's transaction. So each looks once more when its turn has come.
func raised[T any](ctx context.Context, f *Fence, begin func() (T, conn, error), all []Mark, behind *behindError) (t T, c conn, err error) {
	leave, err := f.advancing.enter(ctx, behind.resource)
	if err != nil {
		return t, c, err
	}
	defer leave()
	var still *behindError
	if t, c, err = open(ctx, f, begin, all); !errors.As(err, &still) || still.resource != behind.resource {
		return t, c, err
	}
	one := slices.DeleteFunc(slices.Clone(all), func(m Mark) bool { return m.Resource != behind.resource })
	t, advance, err := open(ctx, f, blind(begin), alone(one))
	if err != nil {
		return t, c, err
	}
	defer func() { _ = advance.rollback() }() // nothing after a commit
	if err := f.commit(ctx, advance); err != nil && !errors.Is(err, ErrCommitUnknown) {
		return t, c, err
	}
	return open(ctx, f, begin, all)
}

// goneError: the row was pruned between the two transactions, or the first one's COMMIT is unknown and did nothing.
type goneError struct{ behind *behindError }

func (e *goneError) Error() string {
	return fmt.Sprintf("sqlfence: the guard row of %q went right after it was raised to %d: begin again", e.behind.resource, e.behind.token)
}

// turns lets one call of each key in at a time.
type turns struct {
	mu  sync.Mutex
	all map[string]chan struct{} // of those that are in, closed when they leave
}

func (t *turns) enter(ctx context.Context, key string) (leave func(), err error) {
	for {
		t.mu.Lock()
		before, busy := t.all[key]
		if !busy {
			if t.all == nil {
				t.all = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			t.all[key] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.all, key)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, live(ctx)
		}
	}
}

// open is one attempt at that. A transaction that could not be guarded has been rolled back.
func open[T any](ctx context.Context, f *Fence, begin func() (T, conn, error), all []Mark) (none T, _ conn, err error) {
	if err := live(ctx); err != nil {
		return none, conn{}, err
	}
	t, c, err := begin()
	if err != nil {
		return none, conn{}, because(ctx, failed("begin", err))
	}
	returned := false
	defer func() {
		if !returned { // a hook or a driver panicked
			_ = c.rollback()
		}
	}()
	if err = suitable(c.tx); err == nil {
		err = f.guard(ctx, c, all)
	}
	returned = true
	var behind *behindError
	if errors.As(err, &behind) && behind.snapshot {
		// What it has raised is committed, and shuts the older ones out: the next one waits for none of them.
		if failure := f.commit(ctx, c); failure != nil && !errors.Is(failure, ErrCommitUnknown) {
			err = failure
		}
	}
	if err != nil {
		return none, conn{}, rolledBack(err, c.rollback)
	}
	return t, c, nil
}

// with runs fn in a guarded transaction and commits it, as often as it takes. It ends the transaction however fn ends, a panic
// and runtime.Goexit included.
func with[T any](ctx context.Context, f *Fence, begin func() (T, conn, error), fn func(T) error, all []Mark, again func(error) bool) error {
	return f.repeat(ctx, all, again, func() (ran bool, err error) {
		t, c, err := start(ctx, f, begin, all)
		if err != nil {
			return false, err
		}
		defer func() { _ = c.rollback() }() // nothing after a commit
		if err := f.kept(ctx, c, func() error { return fn(t) }); err != nil {
			return true, err
		}
		return true, f.commit(ctx, c)
	})
}

// commit does not send COMMIT under a context that has ended: drivers disagree on what it does then.
func (f *Fence) commit(ctx context.Context, c conn) error {
	if err := live(ctx); err != nil {
		return err
	}
	return f.committed(c.commit())
}

// kept runs fn within a savepoint where the database ends a transaction under a caller that takes no notice: MySQL at a
// deadlock, and at a statement that commits by itself. What runs after that is committed statement by statement, without
// the guard, and COMMIT has nothing to say about it. The savepoint is then gone as well.
func (f *Fence) kept(ctx context.Context, c conn, fn func() error) error {
	if f.dialect != MySQL {
		return fn()
	}
	if err := c.exec("SAVEPOINT sqlfence_guard"); err != nil {
		return because(ctx, failed("savepoint", err))
	}
	failure := fn()
	if failure != nil && find(failure, func(err error) bool { n := number(err, "Number"); return n == 1213 || n == 1020 }) {
		return failure // MySQL has rolled back, and has taken the savepoint along
	}
	err := c.exec("RELEASE SAVEPOINT sqlfence_guard")
	switch {
	case find(err, func(err error) bool { return number(err, "Number") == 1305 }):
		if failure != nil {
			err = fmt.Errorf("%w; %w", failure, err)
		}
		err = &unknownError{fmt.Errorf("the transaction ended before its COMMIT, by an ignored deadlock or a statement that commits by itself; what ran after that was not guarded: %w", err)}
	case failure != nil:
		return failure
	case err == nil:
		return nil
	default:
		err = failed("release savepoint", err)
	}
	return because(ctx, err)
}

const (
	firstPause = 2 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// repeat runs attempt until it succeeds or fails for good. Where a transaction has met another one at the guard, before fn ran,
// and failed for that at REPEATABLE READ or SERIALIZABLE, somebody else has committed and nothing is done twice. That is no
// attempt of those that are counted: with many who wait in turn, ten would not do.
func (f *Fence) repeat(ctx context.Context, all []Mark, again func(error) bool, attempt func() (ran bool, err error)) error {
	pause := firstPause
	for n, met := 0, 0; ; {
		ran, err := attempt()
		if errors.Is(err, ErrCommitUnknown) {
			f.trace.emit(ctx, unknown, Event{Marks: all, Err: err})
		}
		if err == nil || n >= f.retries || !again(err) {
			return err
		}
		if !ran && met < maxRetries && find(err, f.dialect.changed) {
			met++
			pause = firstPause
		} else {
			n++
		}
		f.trace.emit(ctx, retried, Event{Marks: all, Attempts: n + met, Err: err})
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
