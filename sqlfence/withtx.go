package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// DB begins transactions: [*sql.DB], [*sql.Conn] and types that embed them.
type DB interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// WithTx runs fn in a transaction that is guarded like [Fence.Guard], and commits it. fn reads all that earlier holders have
// committed. Unless WithTx returns nil or an [ErrCommitUnknown], nothing is written, provided that fn keeps these rules:
//
//   - fn must have no effect outside the transaction. It can run several times, because WithTx repeats the transaction after
//     a deadlock, a serialization failure or, if that comes at once, a busy SQLite: see [WithRetries].
//   - fn must return every error of the database, wrapped or not. A deadlock on MySQL, or an interrupted write on SQLite,
//     ends the transaction, and later statements are committed one by one. fn may go on only after an error that leaves the
//     transaction open, such as [sql.ErrNoRows] or a duplicate key; after the latter PostgreSQL takes a savepoint of fn's own.
//   - fn must neither commit nor roll back.
//   - fn must pass its ctx on, to its statements and to what it calls. It is that of WithTx, and knows the transaction.
//
// If fn panics, WithTx rolls back and the panic goes on. opts may be nil.
//
// The loss of a lock in ctx interrupts fn's statements. Before COMMIT, WithTx checks ctx and its locks once more.
//
// Keep fn short, because others wait for it. The context bounds the wait, and so does a lock timeout of the database: see
// [Dialect]. WithTx does not repeat a transaction that ended with such a timeout or NOWAIT, so that it bounds the call and not
// each attempt. A SQLite that is BUSY does not say whether it has waited: WithTx repeats for a second.
//
// A transaction of the same Fence inside fn would wait for the outer one, and the outer one for fn. With fn's ctx, WithTx,
// BeginTx and Advance fail at once with [holdfast.ErrSelfDeadlock]. What fn starts and does not wait for takes a context from
// outside of fn.
//
// On MySQL the transaction also ends at a statement that commits implicitly, DDL above all, and with
// innodb_rollback_on_timeout at a lock timeout. When fn returns, WithTx detects by a savepoint, which costs two round trips,
// that the transaction has ended, by these or by an error that fn ignored, and returns an ErrCommitUnknown. What ran before such
// a statement, or after the end, is already written. WithTx does not detect it once the context has ended, nor if fn returns a
// deadlock after such a statement: then it repeats the transaction.
//
// Errors: those of Guard; [ErrCommitUnknown]; [holdfast.ErrSelfDeadlock]; fn's error as it is, even if a lock was lost meanwhile.
func (f *Fence) WithTx(ctx context.Context, db DB, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if fn == nil {
		return invalid("nil function")
	}
	all, err := f.beginsOn(ctx, db, opts)
	if err != nil {
		return err
	}
	return f.with(ctx, beginSQL(ctx, db, opts), func(ctx context.Context, tx any) error { return fn(ctx, tx.(*sql.Tx)) }, all, f.retryable)
}

// BeginTx begins a transaction and guards it like [Fence.Guard]. End it with [Fence.Commit], or roll it back. BeginTx repeats
// nothing. opts may be nil.
//
// Errors: those of Guard, and [holdfast.ErrSelfDeadlock]. After an error no transaction is open.
func (f *Fence) BeginTx(ctx context.Context, db DB, opts *sql.TxOptions) (*sql.Tx, error) {
	all, err := f.beginsOn(ctx, db, opts)
	if err != nil {
		return nil, err
	}
	c, err := f.start(ctx, beginSQL(ctx, db, opts), all)
	tx, _ := c.Tx.(*sql.Tx)
	return tx, err
}

// Commit commits a transaction of [Fence.BeginTx] or [Fence.Guard]; ctx is the context that they were given. Like
// [Fence.WithTx], Commit first checks ctx and its locks once more, and rolls back if one has ended. It tells a COMMIT whose
// outcome is unknown from one that failed. Unlike WithTx, it does not detect that MySQL had ended the transaction before.
//
// Errors: [holdfast.ErrLost] and the context's error, both with nothing written; [ErrCommitUnknown]; [holdfast.ErrInvalid]; else
// the database's error.
func (f *Fence) Commit(ctx context.Context, tx Tx) error {
	if isNil(tx) {
		return invalid("nil transaction")
	}
	return f.commitTx(ctx, plain(ctx, tx))
}

func (f *Fence) commitTx(ctx context.Context, c conn) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	if err := live(ctx); err != nil {
		return rolledBack(err, c.Rollback)
	}
	return f.committed(ctx, f.dialect.commit(ctx, c))
}

// Advance raises the guard rows that [Fence.Guard] would raise, in a transaction of its own. Until a holder first commits, the
// holder before it can still write. So a holder that reads outside WithTx before it writes should call Advance right after it
// has acquired the lock. From then on no guarded writer with an older token changes what it reads.
//
// Advance repeats its transaction like WithTx, and also after an [ErrCommitUnknown]. Errors: those of WithTx.
func (f *Fence) Advance(ctx context.Context, db DB) error {
	all, err := f.beginsOn(ctx, db, nil)
	if err != nil {
		return err
	}
	again := func(err error) bool { return f.retryable(err) || errors.Is(err, ErrCommitUnknown) }
	return f.with(ctx, blind(beginSQL(ctx, db, nil)), func(context.Context, any) error { return nil }, all, again)
}

func beginSQL(ctx context.Context, db DB, opts *sql.TxOptions) func() (conn, error) {
	return func() (conn, error) {
		tx, err := db.BeginTx(ctx, opts)
		if err != nil {
			return conn{}, err
		}
		return plain(ctx, tx), nil
	}
}

// blind begins transactions that read nothing. Their guard shares no row: it raises them, as those that share them cannot.
func blind(begin func() (conn, error)) func() (conn, error) {
	return func() (conn, error) {
		c, err := begin()
		c.Blind = true
		return c, err
	}
}

func (f *Fence) beginsOn(ctx context.Context, db DB, opts *sql.TxOptions) ([]Mark, error) {
	switch {
	case isNil(db):
		return nil, invalid("nil database")
	case opts != nil && opts.ReadOnly:
		return nil, invalid("a guard writes, the transaction is read-only")
	}
	return f.begins(ctx)
}

// begins prepares a call that begins a transaction. Inside another one, which the same marks guard, it would wait forever: the
// database sees only that one session is idle, not what its program waits for. Parallel ones are no exception, since a newer
// holder may stand in line between the two.
func (f *Fence) begins(ctx context.Context) ([]Mark, error) {
	all, err := f.Marks(ctx)
	if err != nil {
		return nil, err
	}
	for o, _ := ctx.Value(outerKey{}).(*outer); o != nil; o = o.outer {
		if o.fence == f && !o.ended.Load() {
			return nil, fmt.Errorf("sqlfence: a transaction for %q inside another one would wait for itself: use the outer one, tx: %w", all[0].Resource, holdfast.ErrSelfDeadlock)
		}
	}
	return all, nil
}

type outerKey struct{}

// outer is a guarded transaction in the context of its function. A context that outlives it is as good as any other.
type outer struct {
	fence *Fence
	ended atomic.Bool
	outer *outer
}

// start begins a guarded transaction.
func (f *Fence) start(ctx context.Context, begin func() (conn, error), all []Mark) (conn, error) {
	c, err := f.open(ctx, begin, all)
	for raises, anew := 0, 0; ; {
		var behind *behindError
		if !errors.As(err, &behind) {
			return c, err
		}
		// One raise and one newer snapshot for each row are enough, unless a row was pruned in between.
		switch {
		case raises == len(all) || anew == len(all):
			return c, &goneError{behind}
		case behind.snapshot:
			anew++
			c, err = f.open(ctx, begin, all)
		default:
			raises++
			c, err = f.raised(ctx, begin, all, behind)
		}
	}
}

// raised raises a row that is behind, in a transaction of its own, and then begins the guarded transaction. It raises no
// other row, as that would wait for all transactions that share the other row. The transaction that found the row behind
// has ended by now: a transaction that raises a row while it shares it would wait for one that does the same. Only one of
// the calls that find the row behind raises it, as the others would wait for its transaction. So each call takes its turn,
// and then looks again.
func (f *Fence) raised(ctx context.Context, begin func() (conn, error), all []Mark, behind *behindError) (c conn, err error) {
	leave, err := f.advancing.enter(ctx, behind.resource)
	if err != nil {
		return c, err
	}
	defer leave()
	var still *behindError
	if c, err = f.open(ctx, begin, all); !errors.As(err, &still) || still.resource != behind.resource {
		return c, err
	}
	one := slices.DeleteFunc(slices.Clone(all), func(m Mark) bool { return m.Resource != behind.resource })
	advance, err := f.open(ctx, blind(begin), one)
	if err != nil {
		return c, err
	}
	defer func() { _ = advance.Rollback() }() // nothing after a commit
	if err := f.commit(ctx, advance); err != nil && !errors.Is(err, ErrCommitUnknown) {
		return c, err
	}
	return f.open(ctx, begin, all)
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
func (f *Fence) open(ctx context.Context, begin func() (conn, error), all []Mark) (c conn, err error) {
	if err := live(ctx); err != nil {
		return conn{}, err
	}
	c, err = begin()
	if err != nil {
		return conn{}, because(ctx, failed("begin", err))
	}
	returned := false
	defer func() {
		if !returned { // a hook or a driver panicked
			_ = c.Rollback()
		}
	}()
	err = f.guard(ctx, c, all)
	returned = true
	var behind *behindError
	if errors.As(err, &behind) && behind.snapshot {
		// Commit the raise: it shuts older tokens out, so that the next attempt waits for none of their transactions.
		if failure := f.commit(ctx, c); failure != nil && !errors.Is(failure, ErrCommitUnknown) {
			err = failure
		}
	}
	if err != nil {
		return conn{}, rolledBack(err, c.Rollback)
	}
	return c, nil
}

// with runs fn in a guarded transaction and commits it, as often as it takes. It ends the transaction however fn ends, even
// by a panic or runtime.Goexit.
func (f *Fence) with(ctx context.Context, begin func() (conn, error), fn func(ctx context.Context, tx any) error, all []Mark, again func(error) bool) error {
	return f.repeat(ctx, all, again, func() (ran bool, err error) {
		c, err := f.start(ctx, begin, all)
		if err != nil {
			return false, err
		}
		o := &outer{fence: f}
		o.outer, _ = ctx.Value(outerKey{}).(*outer)
		defer o.ended.Store(true)
		defer func() { _ = c.Rollback() }() // nothing after a commit
		if err := f.kept(ctx, c, func() error { return fn(context.WithValue(ctx, outerKey{}, o), c.Tx) }); err != nil {
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
	return f.committed(ctx, f.dialect.commit(ctx, c))
}

// kept runs fn, and on MySQL detects that the transaction ended meanwhile. MySQL ends a transaction at a deadlock and at a
// statement that commits implicitly. If fn ignores that, its later statements are committed one by one, without the guard,
// and COMMIT succeeds all the same. But the savepoint that kept sets before fn is gone then.
func (f *Fence) kept(ctx context.Context, c conn, fn func() error) error {
	if f.dialect != MySQL {
		return fn()
	}
	if _, err := c.Exec("SAVEPOINT sqlfence_guard"); err != nil {
		return because(ctx, failed("savepoint", err))
	}
	failure := fn()
	if failure != nil && find(failure, func(err error) bool { n := number(err, "Number"); return n == 1213 || n == 1020 }) {
		return failure // MySQL has rolled back, and has taken the savepoint along
	}
	_, err := c.Exec("RELEASE SAVEPOINT sqlfence_guard")
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
	busyFor    = time.Second // how long a transaction that finds SQLite BUSY is repeated
)

// repeat runs attempt until it succeeds or fails for good. At REPEATABLE READ and SERIALIZABLE a transaction can fail at the
// guard, before fn has run, because another transaction has committed. Such an attempt has done nothing, and does not count
// towards the retries: ten would not be enough for a transaction that waits its turn among many.
func (f *Fence) repeat(ctx context.Context, all []Mark, again func(error) bool, attempt func() (ran bool, err error)) error {
	began, pause := time.Now(), firstPause
	for n, met := 0, 0; ; {
		ran, err := attempt()
		if errors.Is(err, ErrCommitUnknown) {
			f.traces.emit(ctx, unknown, Event{Marks: all, Err: err})
		}
		if err == nil || f.retries == 0 || f.waited(err, time.Since(began)) || !again(err) {
			return err
		}
		switch {
		case !ran && met < maxRetries && find(err, f.dialect.changed):
			met++
			pause = firstPause
		case n == f.retries:
			return err
		default:
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
