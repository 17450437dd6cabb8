// Package sqlfence makes a database refuse the writes of a lock's holder once another holder has taken the lock over.
//
// A lock is a lease. A process that is paused past its lease keeps writing alongside its successor. No lock service can
// prevent that, but the database can. Each acquisition has a fencing token that is larger than all before it. The table
// sqlfence has a guard row for each resource, which is the key of a lock. A guarded transaction raises that row to its
// holder's token, and fails if the row has a larger one.
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
//		// WithTx detected the loss, and wrote nothing; or Do detected it afterwards, perhaps after the commit
//	}
//
// The tokens come from the context: pass the lock's context, or one derived from it. All of its locks guard the
// transaction, except those with [holdfast.WithLimit] or [holdfast.WithShared]. A call that is given marks, see [Mark], uses
// only those. Once a lock in the context is lost or released, every call with that context fails. Transactions guarded by
// one resource run one after the other. A leader or a cron job that does much work under one lock can run its transactions
// in parallel: see [WithParallel].
//
// Use [With] for sqlx, GORM, bun and ent, [WithPgx] for pgx, [Fence.BeginTx] for code that commits on its own, and
// [Fence.ExecRow] for a row with a fence of its own. [Postgres], [MySQL] and [SQLite] say how to set up the database.
// [Fence.Prune] deletes old guard rows. A test can use [WithToken] instead of a lock, and SQLite in memory with one
// connection.
//
// # Guarantees
//
//   - Once a transaction has committed, no transaction guarded by the same resource commits with an older token, whatever
//     was paused in between. Transactions commit in the order of their tokens.
//   - No update is lost. Until a transaction ends, no other guarded by its resource changes what it read in [Fence.WithTx],
//     or after a [Fence.Guard] that was its first statement. Under WithParallel, those of the same holder can.
//   - A holder is never refused because of its own token, nor because of a token that was rolled back.
//   - A failed guard has ended the transaction. A caller that ignores its error cannot commit.
//   - Guards of several resources use one order everywhere. They do not deadlock, except on new rows: see [MySQL].
//
// # Limits
//
//   - Writes outside the guarded transaction are not covered: on the pool, in another transaction or database, after a
//     rollback to a savepoint before the guard, by programs that do not guard, or that use another table ([WithTable]).
//   - What is not part of the transaction is not covered: e-mails, files, other services. Pass the token on, and compare it
//     there: RECIPES.md shows how for Redis, S3, DynamoDB, MongoDB and HTTP.
//   - A read from a read replica may be old. The old holder can write until the new one first commits: see [Fence.Advance].
//   - Guard rows must not be lost while old holders may still run: see [Fence.DDL] and [Fence.Prune].
//   - A holder paused in a guarded transaction blocks the next one, even past its lease. Bound that in the database.
//
// # Errors
//
//	ErrStale            the database has seen a newer holder: nothing is written; a *StaleError has both tokens; stop
//	ErrCommitUnknown    the connection broke or the context ended at COMMIT, or MySQL had ended the transaction before:
//	                    it may or may not be written; read before you repeat it
//	ErrNoToken          the context carries no token to guard by: nothing is written
//	holdfast.ErrLost    a lock in the context is lost or released: nothing is written
//	holdfast.ErrInvalid an argument that can never work: nothing is written
//	sql.ErrNoRows       from ExecRow alone: the row does not exist afterwards: rolled back
//	any other           from the database, with the context's error if that has ended, or from the function: rolled back
package sqlfence
