// Package sqlfence has a database refuse the writes of a lock's holder once another holder has taken the lock over.
//
// A lock is a lease: a process that is paused past it wakes up and goes on writing, and no lock service can prevent
// that. The database can. Each acquisition has a larger token than all before it. A guarded transaction raises a row of
// the table sqlfence to its holder's token, and fails where that row has a larger one.
//
//	fence, err := sqlfence.New(sqlfence.Postgres) // or MySQL, or SQLite
//	_, err = db.ExecContext(ctx, fence.DDL())     // once, or in a migration
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return fence.WithTx(ctx, db, nil, func(tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", id)
//			return err
//		})
//	})
//	if errors.Is(err, holdfast.ErrLost) {
//		// WithTx had found that, and wrote nothing; or Do found it afterwards, perhaps after the commit
//	}
//
// The tokens come from the context, which is that of a lock or descends from it. All of its locks guard the transaction, but
// for those with [holdfast.WithLimit] or [holdfast.WithShared]. If the call is given marks, see [Mark], those alone do. Once
// a lock in the context is over, lost or released, every call with that context fails. Transactions of one resource run one
// after the other. Under a lock around much work, a leader's or a cron job's, those of one holder can run beside each other:
// see [WithParallel].
//
// [With] is for sqlx, GORM, bun and ent, [WithPgx] for pgx, [Fence.BeginTx] for code that commits by itself, [Fence.ExecRow]
// for a row with a fence of its own. Set the database up as [Postgres], [MySQL] and [SQLite] say; [Fence.Prune] deletes old
// guard rows. In tests [WithToken] stands in for a lock, and SQLite in memory, with one connection, for the database.
//
// # Guarantees
//
//   - Of the transactions guarded by one resource, none with an older token commits after one with a newer token has
//     committed, whatever was paused in between. They commit in the order of their tokens.
//   - No update is lost. Until a transaction ends, no other one guarded by the resource changes what it reads in
//     [Fence.WithTx], or after a [Fence.Guard] that was its first statement. With WithParallel that holds for the transactions
//     of other holders.
//   - A holder is never refused because of itself, nor because of a token that was rolled back.
//   - A failed guard has ended the transaction: ignoring its error does not commit.
//   - Several resources are guarded in one order everywhere, without deadlocks among them, but for new rows: see [MySQL].
//
// # Limits
//
//   - Writes outside of the guarded transaction are not covered: on the pool, in another transaction or database, after a
//     rollback to a savepoint before the guard, by programs that do not guard or that have another table ([WithTable]).
//   - What is no transaction is not covered: e-mails, files, other services. Pass the token on, and compare it there:
//     RECIPES.md has how, for Redis, S3, DynamoDB, MongoDB and HTTP.
//   - A read on a replica may be old. Until the new holder's first commit the old one may write: see [Fence.Advance].
//   - Guard rows must not be lost as long as old holders may be around: see [Fence.DDL] and [Fence.Prune].
//   - A holder that is paused in a guarded transaction blocks the next one at its guard, also past its lease. Bound that
//     in the database.
//
// # Errors
//
//	ErrStale            a newer holder was here: nothing is written; a *StaleError tells both tokens; do not go on
//	ErrCommitUnknown    the connection broke or the context ended at COMMIT, or MySQL had ended the transaction before:
//	                    written or not; read before doing it again
//	ErrNoToken          the context carries no token to guard by: nothing is written
//	holdfast.ErrLost    a lock in the context is over, lost or released: nothing is written
//	holdfast.ErrInvalid arguments that can never work: nothing is written
//	sql.ErrNoRows       ExecRow alone: there is no such row afterwards: rolled back
//	any other           what the database said, or the function returned: rolled back; with the context's error if it ended
package sqlfence
