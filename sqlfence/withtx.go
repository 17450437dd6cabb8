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

// WithTx runs fn in a guarded transaction and commits it. The transaction is guarded by all locks and tokens that ctx
// carries, or by the marks alone if any are given. fn reads everything that earlier holders have committed. Unless WithTx
// returns nil or an [ErrCommitUnknown], nothing is written, provided that fn keeps these rules:
//
//   - fn must have no effect outside the transaction. It can run several times, because WithTx repeats the transaction after
//     a deadlock, a serialization failure, a lock timeout or a busy SQLite: see [WithRetryable].
//   - fn must return every error of the database, wrapped or not. A deadlock on MySQL, or an interrupted write on SQLite,
//     ends the transaction, and later statements are committed one by one. fn may go on only after an error that leaves the
//     transaction open, such as a duplicate key. On PostgreSQL that takes a savepoint of fn's own. The [sql.ErrNoRows] of a
//     query is not an error of the database; after any error of [Fence.ExecRow] the transaction has been rolled back.
//   - fn must neither commit nor roll back.
//
// If fn panics, WithTx rolls back and the panic goes on.
//
// Pass the lock's context, so that the loss of the lock also interrupts fn's statements. Before COMMIT, WithTx checks ctx
// and the locks in it once more. To guard by a token without its lock, use [WithToken]. opts may be nil.
//
// Keep fn short: the guarded transactions of one resource run one after the other, except those of one holder under
// [WithParallel]. A WithTx for the same lock inside fn waits for the outer one. The context bounds such waits, and so does
// the database: see [Postgres], [MySQL] and [SQLite].
//
// On MySQL the transaction also ends at a statement that commits implicitly, DDL above all. When fn returns, WithTx detects
// that the transaction has ended, by such a statement or by an error that fn ignored, and returns an [ErrCommitUnknown].
// What ran before that statement, or after the end, is already written. The check takes a savepoint, which costs two round
// trips. There are three special cases:
//
//   - Once the context has ended, WithTx does not detect it.
//   - If fn returns a deadlock after such a statement, WithTx does not detect it either, and repeats the transaction.
//   - With innodb_rollback_on_timeout, a lock timeout in fn ends the transaction. WithTx returns an ErrCommitUnknown and
//     does not repeat it.
//
// Errors: those of [Fence.Guard]; [ErrCommitUnknown]; fn's error as it is, even if a lock was lost meanwhile; else the
// database's error, joined with the context's if that has ended.
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
// For ent, with its feature sql/execquery, begin has the form of sqlx's. The Tx is what commits and rolls back. Each attempt
// calls begin once. begin must not start a savepoint: the Commit of a savepoint commits nothing.
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

// BeginTx begins a transaction and guards it like [Fence.Guard], for code that commits on its own. End the transaction with
// [Fence.Commit], or roll it back. Under [WithParallel] BeginTx also advances the guard row if necessary. It does not repeat
// a transaction that fails. opts may be nil.
//
// Errors: those of Guard. After an error no transaction is open.
func (f *Fence) BeginTx(ctx context.Context, db DB, opts *sql.TxOptions, marks ...Mark) (*sql.Tx, error) {
	all, err := f.begins(ctx, db, opts, marks)
	if err != nil {
		return nil, err
	}
	tx, _, err := start(ctx, f, beginSQL(ctx, db, opts), all)
	return tx, err
}

// Commit commits a transaction that [Fence.BeginTx] or [Fence.Guard] guarded, or in which [Fence.ExecRow] wrote. ctx is the
// context that they were given. Like [Fence.WithTx], Commit first checks ctx and the locks in it once more, and rolls tx
// back if ctx has ended or a lock is lost or released. It also distinguishes a COMMIT whose outcome is unknown from one that
// failed. Unlike WithTx, Commit does not detect that MySQL had ended the transaction before.
//
// Errors: [holdfast.ErrLost] if a lock of ctx is lost or released, and the context's error if it has ended, both with
// nothing written; [ErrCommitUnknown]; [holdfast.ErrInvalid]; else the database's error.
func (f *Fence) Commit(ctx context.Context, tx Tx) error {
	switch {
	case f == nil || f.dialect == 0:
		return invalid("a Fence that was not made by New")
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

// Advance raises the guard rows that [Fence.Guard] would raise, in a transaction of its own.
//
// Until a holder first commits, the holder before it can still write. So a holder that reads before it writes, and outside
// WithTx, should call Advance right after it has acquired the lock, before it reads. From then on no guarded writer with an
// older token changes what it reads.
//
// Advance repeats its transaction like WithTx, and also if the outcome of a commit is unknown, which is harmless here.
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

// alone returns the marks without Parallel: their guard waits for every open transaction of the resource.
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
		// One raise and one newer snapshot for each row are enough, unless a row was pruned in between.
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

// raised raises a row that is behind, in a transaction of its own, and then begins the guarded transaction. It raises no
// other row, as that would wait for all transactions that share the other row. The transaction that found the row behind
// has ended by now: a transaction that raises a row while it shares it would wait for one that does the same. Only one of
// the calls that find the row behind raises it, as the others would wait for its transaction. So each call takes its turn,
// and then looks again.
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

// goneError says that a row is still behind after it was raised: it was pruned before the guarded transaction began, or the
// COMMIT of the raise had an unknown outcome and did nothing.
type goneError struct{ behind *behindError }

func (e *goneError) Error() string {
	return fmt.Sprintf("sqlfence: the guard row of %q was deleted right after it was raised to %d: begin again", e.behind.resource, e.behind.token)
}

// turns admits one call for each key at a time.
type turns struct {
	mu  sync.Mutex
	all map[string]chan struct{} // by key: closed when the call that is in leaves
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

// open makes one attempt to begin a guarded transaction. It rolls a transaction back that it could not guard.
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
		// Commit the raise: it shuts older tokens out, so that the next attempt waits for none of their transactions.
		if failure := f.commit(ctx, c); failure != nil && !errors.Is(failure, ErrCommitUnknown) {
			err = failure
		}
	}
	if err != nil {
		return none, conn{}, rolledBack(err, c.rollback)
	}
	return t, c, nil
}

// with runs fn in a guarded transaction and commits it, as often as it takes. It ends the transaction however fn ends, even
// by a panic or runtime.Goexit.
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

// commit sends no COMMIT once ctx has ended, because drivers differ in what they do then.
func (f *Fence) commit(ctx context.Context, c conn) error {
	if err := live(ctx); err != nil {
		return err
	}
	return f.committed(c.commit())
}

// kept runs fn, and on MySQL detects that the transaction ended meanwhile. MySQL ends a transaction at a deadlock and at a
// statement that commits implicitly. If fn ignores that, its later statements are committed one by one, without the guard,
// and COMMIT succeeds all the same. But the savepoint that kept sets before fn is gone then.
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
		err = &unknownError{fmt.Errorf("the transaction ended before its COMMIT, by an ignored deadlock or a statement that commits implicitly; what ran after that was not guarded: %w", err)}
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

// repeat runs attempt until it succeeds or fails for good. At REPEATABLE READ and SERIALIZABLE a transaction can fail at the
// guard, before fn has run, because another transaction has committed. Such an attempt has done nothing, and does not count
// towards the retries: ten would not be enough for a transaction that waits its turn among many.
func (f *Fence) repeat(ctx context.Context, all []Mark, again func(error) bool, attempt func() (ran bool, err error)) error {
	pause := firstPause
	for n, met := 0, 0; ; {
		ran, err := attempt()
		if errors.Is(err, ErrCommitUnknown) {
			f.traces.emit(ctx, unknown, Event{Marks: all, Err: err})
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
		f.traces.emit(ctx, retried, Event{Marks: all, Attempts: n + met, Err: err})
		// Half of the pause is fixed, so that there is one; the other half is random, so that transactions that collided part.
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
