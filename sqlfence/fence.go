package sqlfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// A Fence guards the transactions of one database. Make one for each: it is safe for concurrent use, and recognizes its own
// transactions.
type Fence struct {
	dialect   Dialect
	sql       statements
	advancing turns // by resource, for Mark.Parallel
	config
}

// New returns a Fence for a kind of database. It needs the table of [Fence.DDL].
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
	f.sql = dialect.statements(f.table, f.anyToken)
	return f, nil
}

// DDL returns one statement that creates the table of guard rows if it does not exist. Run it in a migration or when the
// program starts; replicas can do so at the same time. The folder migrations has it as files for goose and golang-migrate.
//
// On PostgreSQL it is a DO block with semicolons inside, which some migration tools must be told not to split. If the table
// exists, it needs no right to create one. Guarding needs the rights SELECT, INSERT and UPDATE; Prune also DELETE.
//
// Guard rows must not be lost while old holders may still run: by a DELETE ([Fence.Prune] goes by age), a restored backup, or a
// failover to a database replica that lagged behind.
//
// A row whose token is too large refuses every holder until the clock of Redis has passed it. That is an hour at most while
// the clocks agree, or any time [WithAnyToken]. Such a token comes from a Redis whose clock was ahead, or from a wrong [Mark].
// To repair the row, stop every process that may hold an old lock. Then set it to the token of the lock's holder, or delete it:
//
//	UPDATE sqlfence SET token = 1767225600000000 WHERE resource = 'order:42'
//
// On PostgreSQL 15 a row takes 121 to 257 bytes, with its index, for a resource of 12 to 62 bytes.
func (f *Fence) DDL() string { return f.sql.create }

// Tx is a transaction: a [*sql.Tx], or the transaction of a library on top of it. A pool or a connection is not a Tx: a
// guard on it would end before the write that it should protect.
//
//   - sqlx: *sqlx.Tx. sqlc: the *sql.Tx that its New takes.
//   - ent: the generated Tx, with the feature sql/execquery.
//   - bun: tx.Tx, the *sql.Tx in a bun.Tx. The bun.Tx itself rewrites queries, and is refused.
//   - GORM without gormfence: tx.Statement.ConnPool.(sqlfence.Tx), with or without PrepareStmt.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// Guard makes tx a transaction of the current holder, or rolls it back. For each mark that ctx carries, it raises the guard row
// to the token and locks the row. Until tx ends, no other transaction for the resource gets past its guard, but for parallel
// ones with the same token: see [Mark]. Once tx has committed, no transaction with a smaller token ever does.
//
// Guard must be the first statement of the transaction, at every isolation level. After an earlier read the tokens still
// keep their order, but the holder before may have changed what was read, and an update is lost.
//
// Guard the outermost transaction, because a rollback to an earlier savepoint undoes the guard. The nested transactions of
// GORM, bun and pgx are savepoints. A statement that commits implicitly, on MySQL above all DDL, ends the guard too.
//
// If a lock of ctx is lost or released, Guard fails, even behind a [context.WithoutCancel]. Give work that outlives a lock a
// context from before it. On any error Guard has rolled tx back.
//
// Errors: [ErrStale]; [ErrNoToken]; [holdfast.ErrLost], and the context's error if it has ended, joined with the database's if
// that breaks off a wait; [holdfast.ErrInvalid]; else the database's error.
func (f *Fence) Guard(ctx context.Context, tx Tx) error {
	if isNil(tx) {
		return invalid("nil transaction")
	}
	return f.guardTx(ctx, plain(ctx, tx))
}

func (f *Fence) guardTx(ctx context.Context, c conn) error {
	all, err := f.Marks(ctx)
	if err == nil {
		err = f.guard(ctx, c, all)
	}
	return rolledBack(err, c.Rollback)
}

// plain is a transaction of database/sql.
func plain(ctx context.Context, tx Tx) conn {
	return conn{
		Tx: tx,
		Exec: func(query string, args ...any) (int64, error) {
			result, err := tx.ExecContext(ctx, query, args...)
			if err != nil {
				return 0, err
			}
			id, _ := result.LastInsertId() // not every driver has one
			return id, nil
		},
		Number:   func(query string, args ...any) (int64, error) { return one(tx.QueryContext(ctx, query, args...)) },
		Commit:   tx.Commit,
		Rollback: tx.Rollback,
	}
}

// below returns the transaction below gorm's prepared statements, or the *sql.Tx in sqlx's.
func below(tx Tx) Tx {
	switch typeName(tx) {
	case "gorm.io/gorm.PreparedStmtTX", "github.com/jmoiron/sqlx.Tx", "github.com/holdfast-go/holdfast/sqlfence/gormfence.tx":
		v := reflect.Indirect(reflect.ValueOf(tx)).FieldByName("Tx")
		if !v.IsValid() {
			return tx
		}
		if inner, ok := v.Interface().(Tx); ok {
			return below(inner)
		}
	}
	return tx
}

// guard raises the rows of the marks and refuses what is stale.
func (f *Fence) guard(ctx context.Context, c conn, all []Mark) error {
	if err := cmp.Or(suitable(c.Tx), live(ctx)); err != nil {
		return err
	}
	began := time.Now()
	for _, m := range all {
		shares := m.Parallel && !c.Blind && f.sql.share != ""
		current, err := f.raise(c, m, shares)
		old := current < 0 // the snapshot
		if old {
			current = -current
		}
		ahead := current >= maxToken // of the database's clock
		if ahead {
			current -= maxToken
		}
		switch {
		case err != nil:
			return because(ctx, failed("guard "+m.Resource, f.advised(err)))
		case current > m.Token:
			err := &StaleError{Resource: m.Resource, Token: m.Token, Current: current}
			f.traces.emit(ctx, refused, Event{Marks: all, Elapsed: time.Since(began), Err: err})
			return err
		case ahead && current == m.Token:
			return futureToken(m.Resource, m.Token)
		case current < m.Token && shares, old && !c.Blind:
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

// raise locks the row and returns its token. Unless the transaction shares the row, it has raised it. A result below 0 is
// the negated token, and means that the snapshot is old: see statements.
func (f *Fence) raise(c conn, m Mark, shares bool) (int64, error) {
	hex := fmt.Sprintf("%X", m.Resource)
	read := []any{hex, m.Resource}
	if shares {
		if f.sql.read == "" {
			read = []any{m.Resource, m.Token}
		}
		current, err := c.Number(f.sql.share, read...)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, nil
		}
		return current, err
	}
	raise := f.sql.raise
	if m.Parallel {
		raise = f.sql.advance
	}
	if f.sql.read == "" {
		return c.Number(raise, m.Resource, m.Token)
	}
	if current, err := c.Exec(raise, m.Resource, m.Token, hex); err != nil || current != 0 {
		return current, err
	}
	return c.Number(f.sql.read, read...)
}

// one reads the only number of a result to its end: an error of the statement may come after its rows.
func one(rows *sql.Rows, err error) (n int64, _ error) {
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	if !rows.Next() {
		return 0, cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(&n); err != nil {
		return 0, err
	}
	rows.Next()
	return n, cmp.Or(rows.Err(), rows.Close())
}

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

// Current returns the largest token that the database has seen for a resource, or 0 if it has seen none. It locks nothing.
// Use it for monitoring, and to look around after an [ErrCommitUnknown]. db is a [*sql.DB], [*sql.Conn] or [*sql.Tx].
//
// Errors: [holdfast.ErrInvalid]; else the database's error.
func (f *Fence) Current(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, resource string) (int64, error) {
	if err := cmp.Or(f.check(ctx), Mark{Resource: resource, Token: 1}.check()); err != nil {
		return 0, err
	}
	if isNil(db) {
		return 0, invalid("nil database")
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
