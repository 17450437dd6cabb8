// Package gormfence is a GORM plugin that guards writes under a lock with package [sqlfence]. The database then refuses the
// writes of a holder once another holder has taken its lock over.
//
//	fence, err := sqlfence.New(sqlfence.Postgres)
//	err = db.Exec(fence.DDL()).Error // or a migration; before Use
//	err = db.Use(gormfence.New(fence))
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
//			var o Order
//			if err := tx.First(&o, id).Error; err != nil {
//				return err
//			}
//			return tx.Model(&o).Update("status", "paid").Error
//		})
//	})
//
// A statement's locks are those of its context: pass the lock's context to [gorm.DB.WithContext]. A [sqlfence.Mark] in it counts
// as a lock, and may be parallel. Without a lock nothing changes, unless [WithLockRequired] is set.
//
// # Guarantees
//
//   - A transaction begun under a lock, by Transaction or Begin, is guarded before its first statement, with all that
//     [sqlfence.Fence.Guard] promises. A nested transaction is a savepoint of it. A read-only one is not guarded. If the
//     context has only locks with WithLimit or WithShared, begin the transaction read-only, &sql.TxOptions{ReadOnly: true}.
//     Any other fails with [sqlfence.ErrNoToken], except with [WithUnfenced].
//   - A write under a lock outside a transaction gets a guarded one of its own, together with its hooks and associations,
//     even with SkipDefaultTransaction. That goes for Create, Save, Update, Delete, Exec, and Raw with Find or First.
//   - A write in a transaction that was begun without the write's lock is refused with [ErrUnguarded] before it reaches the
//     database. So is a write by Raw with Scan, Row or Rows outside a transaction: its rows would outlive the guard.
//   - Before COMMIT the plugin checks the locks and the context once more. On MySQL it also detects that the transaction had
//     ended before, like [sqlfence.Fence.WithTx].
//
// The plugin works with dbresolver, whichever of the two is used first. It guards a write in the database to which dbresolver
// sends it, so each source needs the table of guard rows, and so does the database that GORM opened, where dbresolver leaves
// transactions. Reads go to replicas as without the plugin.
//
// A statement counts as a read if GORM builds it for Find, First, Count and the like, or if its text begins as a read and
// shows no write: SELECT without INTO, or WITH without INSERT, UPDATE, DELETE or MERGE. An ambiguous text counts as a write.
//
// # Limits
//
//   - What bypasses GORM's callbacks is not covered (the *sql.DB of [gorm.DB.DB], statements on Statement.ConnPool), nor is a
//     function that writes in a SELECT.
//   - A transaction that the plugin did not begin is guarded before each write only, and not before its reads. That is one
//     put into Statement.ConnPool, or begun within [gorm.DB.Connection], or, if dbresolver is used before the plugin, with a
//     clause of dbresolver. It is never parallel, and its locks are not checked before COMMIT.
//   - A database refuses a token by what has been guarded in it. If dbresolver spreads the writes of one resource over several
//     sources, a late write passes in a source where no newer holder has written yet.
//   - A write's hooks and associations are in its transaction, and so in its database, whatever dbresolver has for their
//     tables. Without the plugin, that is so unless SkipDefaultTransaction is set.
//   - Nothing is repeated. After a deadlock, a serialization failure or a busy SQLite, run the whole Transaction again.
//   - A write outside a transaction keeps the order of the tokens, but does not cover a read before it: use a Transaction.
//   - A hook that panics leaves its statement's transaction open until the context ends, as it does without the plugin.
//   - glebarez/sqlite and modernc.org/sqlite both register the driver "sqlite". If GORM uses glebarez/sqlite, take the
//     *sql.DB from [gorm.DB.DB], and do not import modernc.org/sqlite. Open the file in WAL mode: with a rollback journal, a
//     COMMIT without a lock that finds readers spoils its connection. See [sqlfence.SQLite].
//   - If WithLockRequired is set or the context carries a lock, a migration needs another [gorm.DB] without the plugin. So
//     does what cannot run in a transaction, such as VACUUM. On MySQL, DDL commits implicitly and ends the guard.
//   - A [sqlfence.Fence.WithTx] on the *sql.DB works alongside the plugin. Inside a Transaction for the same lock it waits
//     for that Transaction until the context ends, on SQLite for its busy_timeout. So does a write through db instead of tx.
//     With the context that a WithTx of the plugin's Fence gives its function, a write of the plugin is refused, with
//     [holdfast.ErrSelfDeadlock], whichever database it would go to.
//   - On MySQL, a transaction that ended before its ROLLBACK, for example by DDL, is not detected.
//
// # Errors
//
// GORM returns the errors, and keeps them in DB.Error. They match [sqlfence.ErrStale], [sqlfence.ErrCommitUnknown],
// [sqlfence.ErrNoToken] and [holdfast.ErrLost], as package sqlfence describes them. If Begin fails, check its Error at once:
// GORM's Commit hides it, and with PrepareStmt its Rollback does too.
package gormfence
