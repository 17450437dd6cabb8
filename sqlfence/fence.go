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

// Fence guards the transactions of one database. Make one with [New] for each database: under [WithParallel], calls that
// advance the same guard row wait for each other inside the Fence. A Fence is safe for concurrent use.
type Fence struct {
	dialect   Dialect
	sql       statements
	advancing turns // by resource, for WithParallel
	config
}

// New returns a Fence for a kind of database. It needs the table that the statement of [Fence.DDL] creates.
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

// DDL returns one statement that creates the table of guard rows if it does not exist. Run it in a migration or when the
// program starts. Replicas can run it at the same time; on SQLite that takes a busy_timeout, as always. The folder
// migrations has the statement as files for goose and golang-migrate.
//
// On PostgreSQL the statement is a DO block. It has semicolons inside, so some migration tools must be told not to split it.
// If the table exists, it needs no right to create one. Guarding needs the rights SELECT, INSERT and UPDATE on the table;
// [Fence.Prune] also needs DELETE.
//
// Guard rows must not be deleted while old holders may still run; [Fence.Prune] goes by the rows' age. Nor must rows be
// lost, with a restored backup or a failover to a database replica that lagged behind.
//
// A row whose token is too large refuses every holder until the clock of Redis has passed it. Such a token can come from a
// Redis whose clock was ahead, now or before a restore, or from a mistake with [WithToken]. To repair the row, stop every process that may hold an
// old lock. Then set the row to the token of the lock's holder, or delete it:
//
//	UPDATE sqlfence SET token = 1767225600000000 WHERE resource = 'order:42'
//
// There is one row for each resource. On PostgreSQL 15 a row takes 121 bytes for a resource of 12 bytes, 190 for 36 and 257
// for 62. That is pg_total_relation_size, with the index, of 50,000 rows, each raised four times in separate transactions.
func (f *Fence) DDL() string { return f.sql.create }

// Tx is a transaction: a [*sql.Tx], or the transaction of a library on top of it. A pool or a connection is not a Tx: a
// guard that ran on it would end before the write that it should protect.
//
//   - sqlx and sqlc: a *sqlx.Tx is a Tx, and so is the *sql.Tx that sqlc's New takes.
//   - ent: the generated Tx is a Tx with the feature sql/execquery.
//   - bun: use the *sql.Tx inside a bun.Tx, tx.Tx. The bun.Tx itself is refused, because it rewrites queries.
//   - GORM: the plugin in sqlfence/gormfence, a separate module, guards every transaction and every write under a lock.
//     Without it, use the connection of a transaction, with or without PrepareStmt: tx.Statement.ConnPool.(sqlfence.Tx).
//   - pgx without database/sql: see [GuardPgx] and [WithPgx].
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// Guard makes tx a transaction of the current holder, or rolls it back. For each lock and fencing token that ctx carries, or
// for the marks alone if any are given, it raises the guard row to the token and locks the row. Until tx ends, no other
// transaction for the resource gets past its guard. Once tx has committed, no transaction with a smaller token ever does.
// [WithParallel] lets transactions with the same token pass.
//
// Guard must be the first statement of the transaction, at every isolation level. After an earlier read the tokens still
// keep their order, but the holder before may have changed what was read, and an update is lost.
//
// Guard the outermost transaction, because a rollback to an earlier savepoint undoes the guard. The nested transactions of
// GORM and bun are savepoints, and so is that of pgx's Tx.Begin, which [GuardPgx] and [WithPgx] refuse. A statement that
// commits implicitly, on MySQL above all DDL, ends the guard too. WithTx reports that; Guard does not.
//
// If a lock of ctx is lost or released, Guard fails, even behind a [context.WithoutCancel]. Give work that outlives a lock a
// context from before the lock.
//
// On any error Guard has rolled tx back, so that a caller that ignores the error cannot commit.
//
// Errors: [ErrStale]; [ErrNoToken]; [holdfast.ErrLost] if a lock of ctx is lost or released, and the context's error if ctx has
// ended; [holdfast.ErrInvalid]; else the database's error. If a loss or the end of ctx breaks off a wait in the database, the
// error is joined with the database's.
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
	blind    bool // it reads nothing, so an old snapshot does no harm
	exec     func(query string, args ...any) error
	number   func(query string, args ...any) (int64, error) // the only number in the result; sql.ErrNoRows if it is empty
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

// unprepared returns the transaction below gorm's prepared statements: MySQL cannot prepare a SAVEPOINT. gorm bypasses them
// for its own savepoints too.
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
			f.traces.emit(ctx, refused, Event{Marks: all, Elapsed: time.Since(began), Err: err})
			return err
		case current < m.Token && m.Parallel, old && !c.blind:
			return &behindError{m.Resource, m.Token, old}
		case current < m.Token:
			// Whatever the reason is (another table, a trigger, a type that rounds, a changed name), nothing is guarded.
			return failed("guard "+m.Resource, errNotRaised)
		}
	}
	f.traces.emit(ctx, guarded, Event{Marks: all, Elapsed: time.Since(began)})
	return nil
}

var errNotRaised = errors.New("the guard row does not keep the token: is the table the one that DDL creates, and character_set_connection the client's?")

// behindError says that a guard row has to be raised by a transaction of its own: before parallel transactions can pass it,
// or because the transaction that has just raised it has a snapshot from before the commit of some that passed.
type behindError struct {
	resource string
	token    int64
	snapshot bool // is what is behind, and the row is raised
}

func (e *behindError) Error() string {
	return fmt.Sprintf("sqlfence: in parallel mode Advance must raise %q to token %d before the first Guard: call it, or use WithTx or BeginTx, which do", e.resource, e.token)
}
func (e *behindError) Is(target error) bool { return target == holdfast.ErrInvalid }

// prepare checks all that can be checked without the database.
func (f *Fence) prepare(ctx context.Context, explicit []Mark) ([]Mark, error) {
	if f == nil || f.dialect == 0 {
		return nil, invalid("a Fence that was not made by New")
	}
	if ctx == nil {
		return nil, invalid("nil context")
	}
	// The marks first: a lock that is released after this line fails the check below, rather than being left out.
	all, err := marks(ctx, explicit)
	if over := live(ctx); over != nil {
		return nil, over
	}
	return all, err
}

// raise locks the row and returns its token. Unless m is parallel it has raised the row. A result below 0 is the negated
// token, and means that the snapshot is old: see statements.
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
	errNoNumber = invalid("the token is NULL or not a number: its column must be an integer, NOT NULL")
)

// rolledBack ends a transaction whose guard failed. If the rollback fails, the connection is dead too, or the transaction
// had ended before.
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

// Current returns the largest token that the database has seen for a resource, or 0 if it has seen none. It locks nothing,
// and the token may change at any moment. Use it for monitoring, and to look around after an [ErrCommitUnknown]. db is a
// [*sql.DB], [*sql.Conn] or [*sql.Tx].
//
// Errors: [holdfast.ErrInvalid]; else the database's error.
func (f *Fence) Current(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, resource string) (int64, error) {
	switch {
	case f == nil || f.dialect == 0:
		return 0, invalid("a Fence that was not made by New")
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

// suitable refuses what has the methods of a transaction but does not keep a guard. It recognizes the types by name, because
// this package imports none of their libraries.
func suitable(tx any) error {
	switch typeName(tx) {
	case "github.com/uptrace/bun.Tx":
		return invalid("a bun.Tx rewrites a statement's placeholders: pass the *sql.Tx in it, tx.Tx")
	case "github.com/jackc/pgx/v5.dbSimulatedNestedTx":
		return invalid("a transaction of pgx that was begun on another one is a savepoint, and its Commit commits nothing: begin on the pool or the connection")
	}
	return nil
}

// typeName returns the name of v's type, or of the type that v points to, with the path of its package.
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
