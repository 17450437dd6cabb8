// Package sqlfence has a database refuse what a holder of a lock writes after somebody else has taken the lock over.
//
// A lock is a lease: a process that is paused past it wakes up and goes on writing, and no lock service can
// prevent that. The database can. Each acquisition has a token that is larger than all before; a transaction
// raises a row of the table sqlfence to its holder's token, and one that finds a larger token there is refused.
//
//	fence, err := sqlfence.New(sqlfence.Postgres) // or MySQL, or SQLite
//	...
//	_, err = db.ExecContext(ctx, fence.DDL()) // once, or in a migration
//	...
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return fence.WithTx(ctx, db, nil, func(tx *sql.Tx) error {
//			_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'paid' WHERE id = $1", id)
//			return err
//		})
//	})
//	if errors.Is(err, sqlfence.ErrStale) {
//		// somebody else holds the lock, nothing was written
//	}
//
// The tokens come from the context, which a lock's own is or descends from; several locks are all guarded. If one of
// them is over, lost or released, everything here fails with that context, also behind a [context.WithoutCancel]: work
// that outlives a lock takes a context from before it. Where the transaction is begun elsewhere, [Fence.Guard] is its first statement. [WithToken] puts a token into a context that
// another service passed on.
//
// # Guarantees
//
//   - Of the transactions guarded by one resource, none with an older token commits after one with a newer token has
//     committed, whatever was paused in between. They commit in the order of their tokens.
//   - Nothing is lost: what is read in [Fence.WithTx], or after [Fence.Guard] as the first statement, cannot be
//     changed by another guarded transaction before this one ends.
//   - A holder is never refused because of itself, nor because of a token that was rolled back.
//   - A failed guard has ended the transaction: ignoring its error does not commit.
//   - Several resources are guarded in one order everywhere, without deadlocks among them.
//
// # Isolation
//
// Use READ COMMITTED, the default of PostgreSQL; on MySQL its default, REPEATABLE READ, is as good. A transaction that
// meets another one waits at the guard, and sees all that it wrote. At REPEATABLE READ and SERIALIZABLE
// PostgreSQL fails the one that waited, and MariaDB does with innodb_snapshot_isolation; WithTx repeats it, which
// costs time but not the guarantees. On SQLite open the database with BEGIN IMMEDIATE (modernc.org/sqlite:
// _txlock=immediate) and a busy_timeout, or transactions that meet are refused rather than made to wait, and repeated.
//
// The guard has to come first at every level. Read before it, and the order of the tokens is kept, but what was read may
// have been changed by the holder before: an update is lost. Until the new holder's first commit the
// old one may still write; [Fence.Advance] ends that, for one who reads outside of the guarded transaction.
//
// # Limits
//
// What is not covered:
//
//   - Writes outside of the guarded transaction: on the pool, in another transaction, by programs that do not guard.
//     The guard itself on the pool guards nothing, which is why [*sql.DB] is no [Tx].
//   - Savepoints. A rollback to one takes a guard after it along (gorm's and bun's nested transactions, pgx's
//     Tx.Begin, which [WithPgx] refuses). Guard the outermost transaction.
//   - Hard deletes, for a fence column: it goes with its row. See [Fence.ExecRow]. Guard rows must never be deleted
//     either, nor lost with a restored backup or a failover to a replica that was behind, as long as old holders may
//     be around. There is one per resource. On PostgreSQL 15 it takes 121 bytes for a name of 12, 190 for one of 36 and
//     257 for one of 62: pg_total_relation_size, the index included, over 50,000 rows, each raised four times in
//     transactions of their own.
//   - Replicas and other databases. The guard orders what one database commits. A read on a replica may be
//     old; a write to a second database needs a guard there, and so does one to a second file of SQLite, which
//     in WAL mode does not commit to both as one.
//   - Clusters that take writes on several nodes (Galera, MySQL's group replication with several primaries): a guard
//     with a token that is there already changes nothing, and so meets nothing on the other nodes. Write to one.
//   - What is no transaction: e-mails, files, calls of other services. Pass the token on, and compare it there.
//   - Statements that commit by themselves, DDL on MySQL above all: the guard ends with it. [Fence.WithTx] reports that on
//     MySQL, when what ran after it is written already; a transaction of your own does not. The table must be
//     InnoDB, and so must be what is written.
//   - Programs with another guard table. On PostgreSQL search_path decides which one it is, unless [WithTable] names the
//     schema: do that.
//
// A holder that is paused with a guarded transaction open blocks the next one, which waits at its guard: the
// fence keeps order, and the lock's lease does not end a transaction. Bound it in the database:
//
//   - PostgreSQL: idle_in_transaction_session_timeout ends the transaction of a paused holder, lock_timeout bounds
//     the wait for it.
//   - MySQL: innodb_lock_wait_timeout (50 s by default) bounds the wait; wait_timeout ends idle sessions, on
//     MariaDB idle_write_transaction_timeout idle transactions.
//   - SQLite: busy_timeout bounds the wait. Nothing ends the transaction of a paused process.
//
// The context bounds the wait too, though modernc.org/sqlite does not look at it while it waits. Keep guarded
// transactions short: those of one resource also run one after the other.
//
// # Errors
//
//	ErrStale           a newer holder was here: nothing is written; a *StaleError tells both tokens; do not go on
//	ErrCommitUnknown   the connection broke at COMMIT, or MySQL had ended the transaction before: written or not;
//	                   read before doing it again
//	ErrNoToken         the context carries neither a lock nor a token: nothing is written
//	holdfast.ErrLost       a lock in the context is over, lost or released: nothing is written
//	holdfast.ErrInvalid    arguments that can never work: nothing is written
//	sql.ErrNoRows      ExecRow alone: the row is not there afterwards, and is rolled back
//	any other          what the database said, or the function returned: rolled back
//
// Where the context ended, the error matches the context's too. What can be repeated is told by SQLSTATE 40001, 40P01
// and 55P03 on PostgreSQL (pgx, lib/pq), by number 1205, 1213, 1020 and 3572 on MySQL (go-sql-driver), by the codes BUSY
// and LOCKED on SQLite (modernc.org, mattn, ncruces), and by [WithRetryable] for other drivers. No driver is imported.
// Tested on PostgreSQL 15, MariaDB 10.11 and SQLite 3; the statements are MySQL's too, on which they have not been run.
//
// # With other libraries
//
// sqlx, and code that sqlc made: a *sqlx.Tx is a [Tx], and so is the *sql.Tx that goes to sqlc's New.
//
// gorm: in a transaction, with PrepareStmt or without, the connection is one.
//
//	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
//		if err := fence.Guard(ctx, tx.Statement.ConnPool.(sqlfence.Tx)); err != nil {
//			return err
//		}
//		return tx.Save(&order).Error
//	})
//
// To have each write guarded by itself (Create, Save, Update, Delete, Exec, and Raw that is no SELECT), take guardWrites
// from examples/gorm/guard.go, which registers callbacks; it is tested with PostgreSQL, MariaDB and SQLite. Raw with
// Scan, Row or Rows leaves its rows open, and has to be in a Transaction: elsewhere it is refused. What goes past gorm, by
// db.DB(), is not guarded, and neither is a function that writes in a SELECT. Guarding each write keeps the order of
// tokens; it does not make a read before the write part of it.
//
// bun: the *sql.Tx within a bun.Tx, tx.Tx; bun.Tx itself formats queries anew, and is refused. ent: its generated Tx is a [Tx] with the
// feature sql/execquery. pgx without database/sql: [GuardPgx] and [WithPgx].
//
// # Tests
//
// WithToken stands in for a lock. SQLite in memory, with one connection, is a database to test with; a smaller
// token than one that was committed is a stale holder.
package sqlfence
