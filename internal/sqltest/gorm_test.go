package sqltest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
func (c *cell) dialector() gorm.Dialector {
	switch c.dialect {
	case sqlfence.MySQL:
		return gormmysql.New(gormmysql.Config{Conn: c.db})
	case sqlfence.SQLite:
		return sqliteDialector{conn: c.db}
	}
	return gormpostgres.New(gormpostgres.Config{Conn: c.db})
}

func gormSurfaces(t *testing.T, c *cell) {
	dialector := c.dialector()
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
		if err := guardWrites(guarded, c.fence); err != nil {
			t.Fatal(err)
		}
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,callbacks", prepare), func(ctx context.Context, id int64, status string) error {
			return guarded.WithContext(ctx).Model(&item{ID: id}).Update("status", status).Error
		})
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,callbacks in a transaction", prepare), func(ctx context.Context, id int64, status string) error {
			return guarded.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return tx.Save(&item{id, status}).Error })
		})
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,Exec", prepare), func(ctx context.Context, id int64, status string) error {
			return guarded.WithContext(ctx).Exec(markPaid, status, id).Error
		})
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,Exec in a transaction", prepare), func(ctx context.Context, id int64, status string) error {
			return guarded.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return tx.Exec(markPaid, status, id).Error })
		})
		// MariaDB returns rows of an INSERT, and of no UPDATE.
		replace := "INSERT INTO items (id, status) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status RETURNING id, status"
		if c.dialect == sqlfence.MySQL {
			replace = "REPLACE INTO items (id, status) VALUES (?, ?) RETURNING id, status"
		}
		returned := func(it item, id int64, status string, err error) error {
			if err == nil && it != (item{id, status}) {
				return fmt.Errorf("returned %+v", it)
			}
			return err
		}
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,Raw and Scan", prepare), func(ctx context.Context, id int64, status string) error {
			return guarded.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				var it item
				err := tx.Raw(replace, id, status).Scan(&it).Error
				return returned(it, id, status, err)
			})
		})
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t,Raw and Find", prepare), func(ctx context.Context, id int64, status string) error {
			var it item
			err := guarded.WithContext(ctx).Raw(replace, id, status).Find(&it).Error
			return returned(it, id, status, err)
		})
		t.Run(fmt.Sprintf("gorm,prepare=%t,recipe", prepare), func(t *testing.T) { c.testRecipe(t, guarded) })
	}
}

// The recipe is that of the example.
func TestRecipeForGORM(t *testing.T) {
	t.Parallel()
	var files [2]string
	for i, name := range []string{"guard_test.go", "../../examples/gorm/guard.go"} {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, files[i], _ = strings.Cut(string(src), "\n")
	}
	if files[0] != files[1] {
		t.Error("guard_test.go is not examples/gorm/guard.go")
	}
}

// testRecipe is about what the recipe does apart from guarding.
func (c *cell) testRecipe(t *testing.T, db *gorm.DB) {
	id := databases.Add(1)
	guarded := db.WithContext(sqlfence.WithToken(within(t), fmt.Sprintf("recipe:%d", id), 7))
	if err := guarded.Create(&item{id, "new"}).Error; err != nil {
		t.Fatal(err)
	}
	// A read needs no lock.
	free := db.WithContext(within(t))
	var it item
	var status string
	for what, err := range map[string]error{
		"First":       free.First(&it, id).Error,
		"Raw, First":  free.Raw("SELECT * FROM items WHERE id = ?", id).First(&it).Error,
		"Raw, Scan":   free.Raw("SELECT status FROM items WHERE id = ?", id).Scan(&status).Error,
		"Pluck":       free.Model(&item{}).Where("id = ?", id).Pluck("status", &status).Error,
		"Transaction": free.Transaction(func(tx *gorm.DB) error { return tx.First(&it, id).Error }),
	} {
		if err != nil || it.ID != id || status != "new" {
			t.Errorf("%s: got %v, %+v and %s", what, err, it, status)
		}
	}
	// A write does, of whatever kind.
	for what, err := range map[string]error{
		"Exec":   free.Exec("UPDATE items SET status = 'free' WHERE id = ?", id).Error,
		"Delete": free.Delete(&item{ID: id}).Error,
		"Save":   free.Save(&item{id, "free"}).Error,
		"in a transaction": free.Transaction(func(tx *gorm.DB) error {
			return tx.Exec("UPDATE items SET status = 'free' WHERE id = ?", id).Error
		}),
	} {
		if !errors.Is(err, sqlfence.ErrNoToken) {
			t.Errorf("%s without a lock: got %v, want %v", what, err, sqlfence.ErrNoToken)
		}
	}
	// Rows that are handed out outlive any transaction around the statement.
	const returning = "INSERT INTO items (id, status) VALUES (?, 'free') RETURNING status" // MariaDB has no UPDATE of that kind
	if err := guarded.Raw(returning, databases.Add(1)).Scan(&status).Error; err == nil || !strings.Contains(err.Error(), "outside of a transaction") {
		t.Errorf("Scan outside of a transaction: got %v, want a refusal", err)
	}
	// A nested transaction fails alone, also where the database takes no statement after an error.
	err := guarded.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("UPDATE items SET status = 'outer' WHERE id = ?", id).Error; err != nil {
			return err
		}
		err := tx.Transaction(func(tx *gorm.DB) error {
			if err := tx.Exec("UPDATE items SET status = 'inner' WHERE id = ?", id).Error; err != nil {
				return err
			}
			return tx.Exec("UPDATE nowhere SET n = 1").Error
		})
		if err == nil {
			t.Error("the nested one succeeds")
		}
		return tx.Exec("UPDATE items SET status = 'after' WHERE id = ? AND status = 'outer'", id).Error
	})
	if err != nil {
		t.Errorf("nested: %v", err)
	}
	if n := c.number(t, "SELECT count(*) FROM items WHERE status = 'free'"); n != 0 {
		t.Errorf("%d writes were not guarded", n)
	}
	if n := c.number(t, "SELECT count(*) FROM items WHERE id = ? AND status = 'after'", id); n != 1 {
		t.Error("what followed the nested transaction is not there")
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
