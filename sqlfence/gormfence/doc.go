// Package gormfence has GORM guard what it writes under a lock, so that the database refuses it from a holder whose lock has
// gone to another one. It is [sqlfence] for GORM.
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
// The locks are those of the statement's context: pass the lock's to [gorm.DB.WithContext]. Without a lock nothing changes,
// unless [WithLockRequired] is set. [sqlfence.WithParallel] counts here too.
//
// # Guarantees
//
//   - A transaction begun under a lock, by Transaction or Begin, is guarded before its first statement, with all that
//     [sqlfence.Fence.Guard] promises. A nested one is a savepoint of it. One that is read-only is not guarded. If the context
//     has only locks with WithLimit or WithShared, begin it read-only, &sql.TxOptions{ReadOnly: true}: any other fails with
//     [sqlfence.ErrNoToken], but with [WithUnfenced].
//   - A write under a lock outside of a transaction has a guarded one of its own: Create, Save, Update, Delete, Exec, and Raw
//     with Find or First, with their hooks and associations, also with SkipDefaultTransaction.
//   - A write under a lock that its transaction is not guarded by is refused with [ErrUnguarded] before it reaches the
//     database. So is a write by Raw with Scan, Row or Rows outside of a transaction, as its rows would outlive the guard.
//   - COMMIT is preceded by another look at the locks and the context. On MySQL it also finds out that the transaction had
//     ended before, as [sqlfence.Fence.WithTx] does.
//
// A statement is taken for a read where gorm makes it of Find, First, Count and the like, or where its text begins as one and
// shows no write: SELECT without INTO, WITH without INSERT, UPDATE, DELETE or MERGE. Text that databases, or their settings,
// would parse in different ways is a write.
//
// # Limits
//
//   - What goes past gorm's callbacks is not covered: the *sql.DB of [gorm.DB.DB], statements on Statement.ConnPool. Neither is
//     a function that writes in a SELECT.
//   - A transaction that was begun past the plugin is guarded before each write only, not before what it reads: one that was
//     put into Statement.ConnPool, and one begun within [gorm.DB.Connection]. It is never parallel, and nothing
//     looks at the locks before its COMMIT.
//   - Nothing is repeated. After a deadlock, a serialization failure or a busy SQLite, run the whole of Transaction again, or
//     use [sqlfence.With], which does.
//   - A write by itself keeps the order of the tokens, but a read before it is not part of it: use a Transaction.
//   - A hook that panics leaves the transaction of its statement open until the context ends, as it does with gorm alone.
//   - glebarez/sqlite and modernc.org/sqlite both register "sqlite": where GORM has the first, take the *sql.DB from
//     [gorm.DB.DB], and do not import the second.
//   - What cannot run in a transaction, VACUUM for one, needs another [gorm.DB], without the plugin. A migration needs one
//     too, if WithLockRequired is set or its context carries a lock. On MySQL DDL commits by itself, and takes the guard
//     along.
//   - A [sqlfence.Fence.WithTx] on the *sql.DB beside the plugin is fine. Within a Transaction of the same lock it waits for
//     that one until the context ends, on SQLite for its busy_timeout, and so does a write by db in place of tx.
//   - On MySQL a transaction that ended before its ROLLBACK, by DDL for one, is not found out.
//
// # Errors
//
// gorm returns them, in DB.Error too. They match [sqlfence.ErrStale], [sqlfence.ErrCommitUnknown], [sqlfence.ErrNoToken] and
// [holdfast.ErrLost], as sqlfence describes them. Where a Begin failed, look at its Error at once: gorm's Commit hides it,
// and so does its Rollback with PrepareStmt.
package gormfence
