package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// Fence has the statements for one database. It may be used concurrently; make it with [New], one for each database: with
// [WithParallel] the calls that advance a row wait in it for each other.
type Fence struct {
	dialect   Dialect
	sql       statements
	advancing turns // of rows, for WithParallel
	config
}

// New returns the fence for a kind of database. The table that it needs is made by [Fence.DDL].
//
// Errors: [holdfast.ErrInvalid].
func New(dialect Dialect, opts ...Option) (*Fence, error) {
	if dialect < Postgres || dialect > SQLite {
		return nil, invalid("unknown dialect %d", uint8(dialect))
	}
	f := &Fence{dialect: dialect, config: config{table: defaultTable, retries: defaultRetries}}
	for _, o := range opts {
		if o == nil {
			return nil, invalid("nil option")
		}
		if err := o.apply(&f.config); err != nil {
			return nil, err
		}
	}
	f.sql = dialect.statements(f.table)
	return f, nil
}

// DDL is one statement that creates the table of guard rows unless it exists, for a migration or for the start of a program.
// Replicas may run it at the same time (on SQLite set a busy_timeout, as always). On PostgreSQL it is a DO block, with
// semicolons inside, which some migration tools have to be told; where the table exists it needs no right to create one.
// Guarding needs SELECT, INSERT and UPDATE, [Fence.Prune] DELETE too. The folder migrations has the statement as files for
// goose and golang-migrate.
//
// Guard rows must never be deleted as long as old holders may be around ([Fence.Prune] goes by their age), nor be lost with a
// restored backup or a failover to a replica that was behind.
//
// A row whose token is too large, after a restore of Redis from the future or a slip with WithToken, refuses every holder until the
// clock is past it. Stop who may hold an old lock, and set the row to the token of the lock's holder, or delete it:
//
//	UPDATE sqlfence SET token = 1767225600000000 WHERE resource = 'order:42'
//
// There is one row per resource. On PostgreSQL 15 it takes 121 bytes for a name of 12, 190 for one
// of 36 and 257 for one of 62: pg_total_relation_size, the index included, over 50,000 rows, each raised four times in
// transactions of their own.
func (f *Fence) DDL() string { return f.sql.create }

// Tx is a transaction: [*sql.Tx], and the transactions of libraries on top of it. A pool or a connection is none: a
// guard that runs by itself is over before the write that it should protect.
//
// sqlx, sqlc: a *sqlx.Tx is a Tx, and so is the *sql.Tx that sqlc's New takes.
//
// ent: its generated Tx is a Tx with the feature sql/execquery.
//
// bun: the *sql.Tx within a bun.Tx, tx.Tx. The bun.Tx itself formats queries anew, and is refused.
//
// gorm: the plugin of sqlfence/gormfence, a module of its own, guards each transaction and each write by itself. By hand, the
// connection of a transaction is a Tx, with PrepareStmt and without: tx.Statement.ConnPool.(sqlfence.Tx).
//
// pgx without database/sql: see [GuardPgx] and [WithPgx].
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// Guard makes the transaction one of the current holder, or ends it. For each lock and token that ctx carries, or for the marks
// given instead, it raises the guard row to the token and locks the row. Until the transaction ends, no other transaction for
// the resource gets past its guard; once it has committed, one with a smaller token never will. [WithParallel] lets those of
// the same token pass.
//
// Guard must be the first statement of the transaction, at every isolation level. After an earlier read the tokens still
// keep their order, but the holder before may have changed what was read: an update is lost. Guard the outermost
// transaction, as a rollback to an earlier savepoint takes the guard along (gorm's and bun's nested transactions, pgx's
// Tx.Begin, which [WithPgx] refuses). A statement that commits by itself, on MySQL above all DDL, ends the guard
// too, which WithTx reports and Guard does not.
//
// If a lock of ctx is over, lost or released, Guard fails, also behind a [context.WithoutCancel]: work that outlives a lock
// takes a context from before it.
//
// On any error Guard has rolled tx back, so that a caller that ignores the error cannot commit.
//
// Errors: [ErrStale]; [ErrNoToken]; [holdfast.ErrLost] for a lock of ctx that is lost or released, and the context's error,
// before the database was asked, or along with the database's error when they ended the wait; [holdfast.ErrInvalid]; else the
// database's error.
func (f *Fence) Guard(ctx context.Context, tx Tx, marks ...Mark) error {
	if isNil(tx) {
		return invalid("nil transaction")
	}
	err := suitable(tx)
	if err == nil {
		err = f.guard(ctx, plain(ctx, tx), marks)
	}
	return rolledBack(err, tx.Rollback)
}

// conn is a transaction as this package needs it, whatever library it comes from.
type conn struct {
	tx       any
	blind    bool // it reads nothing, so that its snapshot may be old
	exec     func(query string, args ...any) error
	number   func(query string, args ...any) (int64, error) // the only one of the result; sql.ErrNoRows if there is none
	commit   func() error
	rollback func() error
}

// plain is a transaction of database/sql.
func plain(ctx context.Context, tx Tx) conn {
	return conn{
		tx: tx,
		exec: func(query string, args ...any) error {
			tx := tx
			if len(args) == 0 { // a savepoint
				tx = unprepared(tx)
			}
			_, err := tx.ExecContext(ctx, query, args...)
			return err
		},
		number:   func(query string, args ...any) (int64, error) { return one(tx.QueryContext(ctx, query, args...)) },
		commit:   tx.Commit,
		rollback: tx.Rollback,
	}
}

// unprepared is the transaction below gorm's prepared statements, among which MySQL has no SAVEPOINT. gorm itself goes past them
// for one.
func unprepared(tx Tx) Tx {
	if typeName(tx) != "gorm.io/gorm.PreparedStmtTX" {
		return tx
	}
	v := reflect.Indirect(reflect.ValueOf(tx)).FieldByName("Tx")
	if !v.IsValid() {
		return tx
	}
	inner, ok := v.Interface().(Tx)
	if !ok {
		return tx
	}
	return unprepared(inner)
}

// guard raises the rows of the marks and refuses what is stale.
func (f *Fence) guard(ctx context.Context, c conn, explicit []Mark) error {
	all, err := f.prepare(ctx, explicit)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, m := range all {
		current, err := f.raise(c, m)
		old := current < 0 // the snapshot
		if old {
			current = -current
		}
		switch {
		case err != nil:
			return because(ctx, failed("guard "+m.Resource, f.advised(err)))
		case current > m.Token:
			err := &StaleError{Resource: m.Resource, Token: m.Token, Current: current}
			f.trace.emit(ctx, refused, Event{Marks: all, Elapsed: time.Since(began), Err: err})
			return err
		case current < m.Token && m.Parallel, old && !c.blind:
			return &behindError{m.Resource, m.Token, old}
		case current < m.Token:
			// A table that is not ours, a trigger, a type that rounds, a changed name: whatever it is, nothing is guarded.
			return failed("guard "+m.Resource, errNotRaised)
		}
	}
	f.trace.emit(ctx, guarded, Event{Marks: all, Elapsed: time.Since(began)})
	return nil
}

var errNotRaised = errors.New("the guard row does not keep the token: is the table the one that DDL creates, and character_set_connection the client's?")

// behindError says that a guard row has to be raised by a transaction of its own: before others can go past it in parallel, or
// because the one that has just raised it has a snapshot from before some that did.
type behindError struct {
	resource string
	token    int64
	snapshot bool // is what is behind, and the row is raised
}

func (e *behindError) Error() string {
	return fmt.Sprintf("sqlfence: where transactions run in parallel, Advance has to raise %q to token %d before the first Guard: call it, or take WithTx or BeginTx, which do", e.resource, e.token)
}
func (e *behindError) Is(target error) bool { return target == holdfast.ErrInvalid }

// prepare checks all that can be checked without the database.
func (f *Fence) prepare(ctx context.Context, explicit []Mark) ([]Mark, error) {
	if f == nil || f.dialect == 0 {
		return nil, invalid("a Fence that New did not make")
	}
	if ctx == nil {
		return nil, invalid("nil context")
	}
	// The marks first: a lock that is released after that is found to be over, not left out.
	all, err := marks(ctx, explicit)
	if over := live(ctx); over != nil {
		return nil, over
	}
	return all, err
}

// raise returns the token that the row has once it is locked. Without Parallel the row has been raised. Below 0 it says that the
// snapshot is old, see statements.
func (f *Fence) raise(c conn, m Mark) (int64, error) {
	hex := fmt.Sprintf("%X", m.Resource)
	switch {
	case m.Parallel && f.sql.share != "":
		args := []any{m.Resource}
		if f.sql.read != "" {
			args = []any{hex, m.Resource}
		}
		current, err := c.number(f.sql.share, args...)
		if find(err, noRows) {
			return 0, nil
		}
		return current, err
	case f.sql.read == "":
		return c.number(f.sql.raise, m.Resource, m.Token)
	}
	if err := c.exec(f.sql.raise, m.Resource, m.Token); err != nil {
		return 0, err
	}
	return c.number(f.sql.read, hex, m.Resource)
}

// one reads the only number of a result to its end: an error of the statement may come after its rows.
func one(rows *sql.Rows, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var n sql.NullInt64
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return 0, err
		}
		return 0, sql.ErrNoRows
	}
	if err := rows.Scan(&n); err != nil {
		return 0, err
	}
	if rows.Next() {
		return 0, errSeveral
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	if !n.Valid {
		return 0, errNoNumber
	}
	return n.Int64, rows.Close()
}

var (
	errSeveral  = invalid("more than one row")
	errNoNumber = invalid("the token is NULL or no number: its column must be an integer, NOT NULL")
)

// rolledBack ends a transaction whose guard failed. Where a rollback fails the connection does not live either, or
// the transaction had ended before.
func rolledBack(err error, rollback func() error) error {
	if err == nil {
		return nil
	}
	if again := rollback(); again != nil && !ended(again) {
		return errors.Join(err, failed("rollback", again))
	}
	return err
}

// rollbackWithin bounds a rollback that has a context of its own.
const rollbackWithin = 5 * time.Second

// Current is the largest token that the database has seen for a resource, 0 if none. It locks nothing and
// promises nothing about the next moment: for monitoring, and to look around after an [ErrCommitUnknown]. db is an *sql.DB,
// *sql.Conn or *sql.Tx.
//
// Errors: [holdfast.ErrInvalid], else the database's error.
func (f *Fence) Current(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, resource string) (int64, error) {
	switch {
	case f == nil || f.dialect == 0:
		return 0, invalid("a Fence that New did not make")
	case ctx == nil:
		return 0, invalid("nil context")
	case isNil(db):
		return 0, invalid("nil database")
	}
	if err := (Mark{Resource: resource, Token: 1}).check(); err != nil {
		return 0, err
	}
	token, err := one(db.QueryContext(ctx, f.sql.look, resource))
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, failed("current "+resource, f.advised(err))
	}
	return token, nil
}

// suitable refuses what has the methods of a transaction and does not keep a guard. The types are told by their names, as
// nothing is imported.
func suitable(tx any) error {
	switch typeName(tx) {
	case "github.com/uptrace/bun.Tx":
		return invalid("a bun.Tx writes the placeholders of a statement anew: pass the *sql.Tx in it, tx.Tx")
	case "github.com/jackc/pgx/v5.dbSimulatedNestedTx":
		return invalid("a transaction of pgx that was begun on another one is a savepoint, and its Commit commits nothing: begin on the pool or the connection")
	}
	return nil
}

// typeName is that of v, or of what v points to, with the path of its package.
func typeName(v any) string {
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() + "." + t.Name()
}

// isNil also finds a nil pointer in an interface.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}
