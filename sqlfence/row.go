package sqlfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// Row names one row that carries its own fence: an integer column with the token of its last writer, not null.
type Row struct {
	Table string // as in [WithTable]
	Key   string // the column that identifies the row: two rows with one ID are refused
	ID    any    // its value
	Fence string // the column of the token
	Token int64  // the writer's; 0 takes the one that the context carries for Resource

	Resource string // a lock's Key. Without it and Token, the context must carry one token alone
}

// ExecRow runs a statement that writes one row together with its fence column, and checks that the row carries the
// token afterwards. The statement is an UPDATE, an upsert or a soft delete that writes only where the fence is not larger,
// and writes the fence too.
//
//	UPDATE orders SET status = $1, fence = $2 WHERE id = $3 AND fence <= $2
//	INSERT INTO orders AS o (id, status, fence) VALUES ($3, $1, $2)
//	  ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status, fence = EXCLUDED.fence WHERE o.fence <= EXCLUDED.fence
//	INSERT INTO orders (id, status, fence) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE -- MySQL: fence last
//	  status = IF(fence <= VALUES(fence), VALUES(status), status), fence = GREATEST(fence, VALUES(fence))
//
// query gets args and nothing else, so the token is among them, that of [holdfast.Held], say. Beside the key, the statement
// itself has to compare the fence, and nothing else. Without fence <= token a stale holder overwrites the row, fence and all,
// and ExecRow cannot see it. With a further condition that is not met the statement writes nothing, which looks like success,
// or like a forgotten fence.
//
// The fence protects that row and nothing else. It does not cover rows that a stale holder inserts under other keys, nor
// what the holder read before; a guard row does. Nor can the fence outlive its row: a hard DELETE takes it along, and a stale
// upsert then brings the row back. Mark rows as deleted instead (ExecRow itself refuses a statement after which the row is
// gone), or guard.
//
// ExecRow reads the outcome from the row, as the number of affected rows does not tell on MySQL. So it costs
// a second statement, and runs in a transaction, which it rolls back on any error. Where the row turns out to have a
// smaller token, an older holder may have inserted it behind the statement's back: the statement runs once more, with
// the row locked. ExecRow refuses a column that is no number: as texts, '9' is larger than '10'.
//
// Errors: [ErrStale]; [ErrNoToken] where row.Token is 0 and ctx carries none; [sql.ErrNoRows] when there is no such row
// afterwards; [holdfast.ErrLost] for a lock of ctx that is over; [holdfast.ErrInvalid], also when the column is no number, and
// when the row has a smaller token after the second run, as after a statement that forgets the fence; else the database's
// error.
func (f *Fence) ExecRow(ctx context.Context, tx Tx, row Row, query string, args ...any) error {
	if isNil(tx) {
		return invalid("nil transaction")
	}
	err := suitable(tx)
	if err == nil {
		err = f.execRow(ctx, plain(ctx, tx), row, query, args)
	}
	return rolledBack(err, tx.Rollback)
}

func (f *Fence) execRow(ctx context.Context, c conn, row Row, query string, args []any) error {
	switch {
	case f == nil || f.dialect == 0:
		return invalid("a Fence that New did not make")
	case ctx == nil:
		return invalid("nil context")
	case !validName(row.Table) || !validName(row.Key) || !validName(row.Fence):
		return invalid("row %.80q of %.80q with fence %.80q: want names of letters, digits, _ and $", row.Key, row.Table, row.Fence)
	case row.ID == nil:
		return invalid("row of %s without an ID", row.Table)
	}
	err := row.token(ctx)
	if err := cmp.Or(live(ctx), err); err != nil {
		return err
	}
	current, err := f.writeRow(ctx, c, row, query, args)
	if err == nil && current < row.Token {
		current, err = f.writeRow(ctx, c, row, query, args)
	}
	switch {
	case err != nil:
		return err
	case current > row.Token:
		return &StaleError{Resource: row.Table, Token: row.Token, Current: current}
	case current < row.Token:
		return invalid("write %s %v: the row has token %d afterwards and not %d: does the statement set %s?", row.Table, row.ID, current, row.Token, row.Fence)
	}
	return nil
}

// token finds the row's, if it is not given.
func (r *Row) token(ctx context.Context) error {
	if r.Token != 0 {
		return checkToken(r.Table, r.Token)
	}
	found, _ := inContext(ctx)
	if r.Resource != "" {
		found = slices.DeleteFunc(found, func(m Mark) bool { return m.Resource != r.Resource })
	}
	switch {
	case len(found) == 0 && r.Resource != "":
		return fmt.Errorf("%w (for %q)", ErrNoToken, r.Resource)
	case len(found) > 1 && r.Resource == "":
		return invalid("the context carries %d tokens: say by Row.Resource which is that of the row in %s", len(found), r.Table)
	}
	all, err := marks(ctx, found)
	if err != nil {
		return err
	}
	r.Token = all[0].Token
	return nil
}

// writeRow runs the statement and returns the token that the row has then. The row is locked from then on.
func (f *Fence) writeRow(ctx context.Context, c conn, row Row, query string, args []any) (int64, error) {
	if err := c.exec(query, args...); err != nil {
		return 0, because(ctx, failed("write "+row.Table, err))
	}
	current, err := c.number(f.dialect.rowToken(row), row.ID)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, failed(fmt.Sprintf("write %s %v", row.Table, row.ID), err)
	}
	if err != nil {
		return 0, because(ctx, failed("read the fence of "+row.Table, err))
	}
	return current, nil
}
