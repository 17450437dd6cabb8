package sqlfence

import (
	"context"
	"database/sql"
)

// commit commits a transaction of the dialect, or, on SQLite, rolls it back if COMMIT fails.
//
// SQLite refuses a COMMIT that finds readers in a file with a rollback journal, or a violated deferred constraint, and leaves
// the transaction open, with its locks. database/sql takes it for ended all the same, and gives the connection to the next
// caller. If the driver does not roll back either, nobody else can write, until some later COMMIT on that connection writes
// what was reported as not written. So COMMIT goes out as a statement, after which the transaction can still be rolled back.
//
// What still uses tx at that moment must not write, unguarded, behind the COMMIT. So the next transaction begins in the same
// call, which has the connection alone, and is rolled back by the library. A library that does more in its Commit, like ent
// with its hooks, must do that in the real one.
func (d Dialect) commit(ctx context.Context, c conn) error {
	t, _ := c.Tx.(Tx)
	if d != SQLite || t == nil {
		return c.Commit()
	}
	tx, ok := below(t).(*sql.Tx)
	if !ok {
		return c.Commit()
	}
	// Not with ctx: if it ends, glebarez/sqlite can return nil for a statement that it has not run.
	ctx = context.WithoutCancel(ctx)
	if _, err := tx.ExecContext(ctx, "COMMIT; BEGIN"); err != nil {
		return rolledBack(err, c.Rollback)
	}
	_ = c.Rollback()
	return nil
}
