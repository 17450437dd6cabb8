package sqlfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// Row names one row that carries its own fence: a NOT NULL integer column with the fencing token of the row's last writer.
type Row struct {
	Table string // as in [WithTable]
	Key   string // the column that identifies the row; it is an error if two rows have the ID
	ID    any    // the value of Key
	Fence string // the column of the token
	Token int64  // the writer's token; 0 takes the one that the context carries for Resource

	Resource string // a lock's Key; if it is empty and Token is 0, the context must carry exactly one token
}

// ExecRow runs a statement that writes one row together with its fence column, and then checks that the row carries the
// token. The statement is an UPDATE, an upsert or a soft delete. It writes only if the fence is not larger than the token,
// and sets the fence too:
//
//	UPDATE orders SET status = $1, fence = $2 WHERE id = $3 AND fence <= $2
//	INSERT INTO orders AS o (id, status, fence) VALUES ($3, $1, $2)
//	  ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status, fence = EXCLUDED.fence WHERE o.fence <= EXCLUDED.fence
//	INSERT INTO orders (id, status, fence) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE -- MySQL: fence last
//	  status = IF(fence <= VALUES(fence), VALUES(status), status), fence = GREATEST(fence, VALUES(fence))
//
// The statement receives args and nothing else, so args must include the token, for example that of a lock from
// [holdfast.Held]. The statement must compare the key and the fence, and nothing else. Without fence <= token, a stale
// holder overwrites the row together with its fence, and ExecRow cannot tell. With a further condition that is not met, the
// statement writes nothing, and the outcome looks like success or like a forgotten fence.
//
// The fence protects that row alone. It does not cover rows that a stale holder inserts under other keys, nor what the
// holder read before. A guard row covers both. The fence does not outlive its row either: after a hard DELETE, a stale
// upsert brings the row back. Mark rows as deleted instead, or guard. ExecRow itself refuses a statement after which the row
// is gone.
//
// ExecRow reads the outcome from the row, because on MySQL the number of affected rows does not show it. That costs a second
// statement. Both run in tx, which ExecRow rolls back on any error. If the row has a smaller token afterwards, an
// older holder may have inserted it when the statement had already found no row. So ExecRow runs the statement once more,
// with the row locked. ExecRow refuses a column that is not a number: as texts, '9' is larger than '10'.
//
// Errors: [ErrStale]; [ErrNoToken] if row.Token is 0 and ctx carries no token for the row; [sql.ErrNoRows] if the row does
// not exist afterwards; [holdfast.ErrLost] if a lock of ctx is lost or released; [holdfast.ErrInvalid], also if the column
// is not a number, or if the row has a smaller token after the second run, as with a statement that does not set the fence;
// else the database's error.
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
		return invalid("a Fence that was not made by New")
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

// token sets r.Token from ctx if it is 0, and checks it.
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
		return invalid("the context carries %d tokens: set Row.Resource to say which one guards the row in %s", len(found), r.Table)
	}
	all, err := marks(ctx, found)
	if err != nil {
		return err
	}
	r.Token = all[0].Token
	return nil
}

// writeRow runs the statement, locks the row and returns its token.
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
