// Package sqlfence makes a database refuse the writes of a lock's holder once another holder has taken the lock over.
//
// A lock is a lease. A process that is paused past its lease keeps writing alongside its successor. Only the
// database can prevent that. Each acquisition has a fencing token that is larger than all before it. The table
// sqlfence has a guard row for each resource, which is the key of a lock. A guarded transaction raises that row to its
// holder's token, and fails if the row has a larger one.
//
//	fence, err := sqlfence.New(sqlfence.Postgres) // or MySQL, or SQLite
//	_, err = db.ExecContext(ctx, fence.DDL())     // once, or in a migration
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", id)
//			return err
//		})
//	})
//	if errors.Is(err, holdfast.ErrLost) {
//		// WithTx wrote nothing; or Do detected the loss afterwards, perhaps after the commit
//	}
//
// The tokens come from the context: pass the lock's context, or one derived from it. All of its locks guard, except those
// with [holdfast.WithLimit] or [holdfast.WithShared], and so do the marks that [Mark.In] has added. Once a lock in the context
// is lost or released, every call with that context fails. Transactions guarded by one resource run one after the other,
// unless its holder makes them parallel: see [Mark].
//
// In transactions of sqlx, ent or bun, use [Fence.Guard] and [Fence.Commit]: see [Tx]. The modules sqlfence/gormfence and
// sqlfence/pgxfence are for GORM, and for pgx without database/sql. [Dialect] says how to set up the database. A test can use a
// [Mark] instead of a lock, and SQLite in memory with one connection.
//
// # Guarantees
//
//   - Once a transaction has committed, no transaction guarded by the same resource commits with an older token, whatever
//     was paused in between. Transactions commit in the order of their tokens.
//   - No update is lost. Until a transaction ends, no other guarded by its resource changes what it read in [Fence.WithTx],
//     or after a [Fence.Guard] that was its first statement. Parallel ones of the same holder can.
//   - A holder is never refused because of its own token, nor because of a token that was rolled back.
//   - A failed guard has ended the transaction. A caller that ignores its error cannot commit.
//   - Guards of several resources use one order everywhere. They do not deadlock, except on new rows: see [MySQL].
//
// # Limits
//
//   - Writes outside the guarded transaction are not covered: on the pool, in another transaction or database, after a
//     rollback to a savepoint before the guard, by programs that do not guard, or that use another table ([WithTable]).
//   - Nor are e-mails, files and other services. Pass the token on, and compare it there: RECIPES.md shows how for Redis, S3,
//     DynamoDB, MongoDB, HTTP, and a SQL row with a fence of its own.
//   - A read replica may be behind. The old holder can write until the new one first commits: see [Fence.Advance].
//   - Guard rows must not be lost while old holders may still run: see [Fence.DDL] and [Fence.Prune].
//   - A holder paused in a guarded transaction blocks the next one, even past its lease. Bound that in the database.
//
// # Errors
//
//	ErrStale                  the database has seen a newer holder; a *StaleError has both tokens; stop
//	ErrCommitUnknown          the connection broke or the context ended at COMMIT, or MySQL had ended the transaction before:
//	                          it may or may not be written; read before you repeat it
//	ErrNoToken                the context carries no token to guard by
//	holdfast.ErrLost          a lock in the context is lost or released
//	holdfast.ErrSelfDeadlock  a transaction inside WithTx, with its context
//	holdfast.ErrInvalid       an argument that can never work, or a token from the future
//	any other                 from the database, with the context's error if that has ended, or from the function
//
// After any of them but ErrCommitUnknown, nothing is written.
package sqlfence
