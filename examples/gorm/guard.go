package main

import (
	"errors"
	"strings"

	"github.com/holdfast-go/holdfast/sqlfence"
	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
)

// guardWrites has each write through db guarded by the locks of its context: what gorm makes of a model, Exec, and Raw
// with whatever reads its rows. In a Transaction that is the transaction, elsewhere each write has one of its own. Raw
// with Scan, Row or Rows hands out rows that are still open, and so has to be in a Transaction. A raw statement
// that begins with SELECT is taken for a read. What has no lock, a migration above all, needs another gorm.DB.
func guardWrites(db *gorm.DB, fence *sqlfence.Fence) error {
	guard := func(db *gorm.DB) {
		if db.Error != nil {
			return
		}
		tx, ok := db.Statement.ConnPool.(sqlfence.Tx)
		if !ok { // SkipDefaultTransaction is set, or rows are to be handed out
			_ = db.AddError(errors.New("a write outside of a transaction is not guarded"))
			return
		}
		if err := fence.Guard(db.Statement.Context, tx); err != nil {
			_ = db.AddError(err)
			db.InstanceSet("sqlfence", err)
		}
	}
	// gorm's rollback fails after that of the guard, and would hide why.
	restore := func(db *gorm.DB) {
		if err, ok := db.InstanceGet("sqlfence"); ok {
			db.Error = err.(error)
		}
	}
	writes := func(db *gorm.DB) bool {
		words := strings.Fields(db.Statement.SQL.String())
		if len(words) == 0 {
			return false // gorm will make a SELECT of it
		}
		switch strings.ToUpper(words[0]) {
		case "SELECT":
			return false
		case "SAVEPOINT", "ROLLBACK": // of a nested transaction: after an error PostgreSQL lets nothing else through
			return false
		}
		return true
	}
	begin := func(db *gorm.DB) {
		if writes(db) {
			callbacks.BeginTransaction(db)
			guard(db)
		}
	}
	end := func(db *gorm.DB) {
		callbacks.CommitOrRollbackTransaction(db) // if begin has begun one
		restore(db)
	}
	rows := func(db *gorm.DB) {
		if writes(db) {
			guard(db)
		}
	}
	on := db.Callback()
	return errors.Join(
		on.Create().After("gorm:begin_transaction").Before("gorm:before_create").Register("sqlfence:guard", guard),
		on.Create().After("gorm:commit_or_rollback_transaction").Register("sqlfence:restore", restore),
		on.Update().After("gorm:begin_transaction").Before("gorm:before_update").Register("sqlfence:guard", guard),
		on.Update().After("gorm:commit_or_rollback_transaction").Register("sqlfence:restore", restore),
		on.Delete().After("gorm:begin_transaction").Before("gorm:before_delete").Register("sqlfence:guard", guard),
		on.Delete().After("gorm:commit_or_rollback_transaction").Register("sqlfence:restore", restore),
		on.Raw().Before("gorm:raw").Register("sqlfence:begin", begin),
		on.Raw().After("gorm:raw").Register("sqlfence:end", end),
		on.Query().Before("gorm:query").Register("sqlfence:begin", begin),
		on.Query().After("gorm:after_query").Register("sqlfence:end", end),
		on.Row().Before("gorm:row").Register("sqlfence:guard", rows),
	)
}
