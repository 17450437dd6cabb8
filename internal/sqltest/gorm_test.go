package sqltest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/sqlfence"
	gormmysql "gorm.io/driver/mysql"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	gormtests "gorm.io/gorm/utils/tests"
)

type item struct {
	ID     int64 `gorm:"primaryKey;autoIncrement:false"`
	Status string
}

// sqliteDialector is for modernc.org/sqlite, whose own for gorm registers a second driver of that name, as gorm's needs cgo.
type sqliteDialector struct {
	gormtests.DummyDialector
	conn gorm.ConnPool
}

func (d sqliteDialector) Initialize(db *gorm.DB) error {
	db.ConnPool = d.conn
	return d.DummyDialector.Initialize(db)
}

func (sqliteDialector) SavePoint(tx *gorm.DB, name string) error {
	return tx.Exec("SAVEPOINT " + name).Error
}

func (sqliteDialector) RollbackTo(tx *gorm.DB, name string) error {
	return tx.Exec("ROLLBACK TO SAVEPOINT " + name).Error
}

// gormSurfaces are those of gorm, with PrepareStmt and without.
func gormSurfaces(t *testing.T, c *cell) {
	var dialector gorm.Dialector = gormpostgres.New(gormpostgres.Config{Conn: c.db})
	switch c.dialect {
	case sqlfence.MySQL:
		dialector = gormmysql.New(gormmysql.Config{Conn: c.db})
	case sqlfence.SQLite:
		dialector = sqliteDialector{conn: c.db}
	}
	for _, prepare := range []bool{false, true} {
		db, err := gorm.Open(dialector, &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t", prepare), func(ctx context.Context, id int64, status string) error {
			return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				if err := c.fence.Guard(ctx, tx.Statement.ConnPool.(sqlfence.Tx)); err != nil {
					return err
				}
				return tx.Save(&item{id, status}).Error
			})
		})
		t.Run(fmt.Sprintf("gorm,prepare=%t,pool", prepare), func(t *testing.T) {
			if _, ok := db.Statement.ConnPool.(sqlfence.Tx); ok {
				t.Error("the pool is taken for a transaction")
			}
		})
		t.Run(fmt.Sprintf("gorm,prepare=%t,savepoint", prepare), func(t *testing.T) { c.testSavepoint(t, db) })
		// The callbacks stay with their gorm.DB.
		guarded, err := gorm.Open(dialector, &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		c.register(t, guarded)
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,callbacks", prepare), func(ctx context.Context, id int64, status string) error {
			return guarded.WithContext(ctx).Model(&item{ID: id}).Update("status", status).Error
		})
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,callbacks in a transaction", prepare), func(ctx context.Context, id int64, status string) error {
			return guarded.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return tx.Save(&item{id, status}).Error })
		})
	}
}

// register is the recipe of the package's description.
func (c *cell) register(t *testing.T, db *gorm.DB) {
	guard := func(db *gorm.DB) {
		if db.Error != nil {
			return
		}
		tx, ok := db.Statement.ConnPool.(sqlfence.Tx)
		if !ok {
			_ = db.AddError(errors.New("a write without a transaction")) // SkipDefaultTransaction
			return
		}
		if err := c.fence.Guard(db.Statement.Context, tx); err != nil {
			_ = db.AddError(err)
			db.InstanceSet("sqlfence", err)
		}
	}
	restore := func(db *gorm.DB) {
		if err, ok := db.InstanceGet("sqlfence"); ok {
			db.Error = err.(error)
		}
	}
	for _, err := range []error{
		db.Callback().Create().After("gorm:begin_transaction").Before("gorm:before_create").Register("sqlfence:guard", guard),
		db.Callback().Create().After("gorm:commit_or_rollback_transaction").Register("sqlfence:error", restore),
		db.Callback().Update().After("gorm:begin_transaction").Before("gorm:before_update").Register("sqlfence:guard", guard),
		db.Callback().Update().After("gorm:commit_or_rollback_transaction").Register("sqlfence:error", restore),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// testSavepoint shows what the package's description warns of.
func (c *cell) testSavepoint(t *testing.T, db *gorm.DB) {
	ctx := sqlfence.WithToken(within(t), "savepoint", databases.Add(1)+100)
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		_ = tx.Transaction(func(nested *gorm.DB) error {
			if err := c.fence.Guard(ctx, nested.Statement.ConnPool.(sqlfence.Tx)); err != nil {
				t.Error(err)
			}
			return errAbort
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.guarded(within(t), "savepoint", 1, nothing); err != nil {
		t.Errorf("the guard outlived its savepoint, the documentation says otherwise: %v", err)
	}
	c.exec(t, "DELETE FROM sqlfence WHERE resource = 'savepoint'")
}
