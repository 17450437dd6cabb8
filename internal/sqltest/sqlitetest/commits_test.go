package sqlitetest_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/glebarez/sqlite"
	"github.com/holdfast-go/holdfast/internal/sqltest/sqlitetest"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/gormfence"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// glebarez/sqlite leaves a transaction open that it could not commit. A guarded one is rolled back.
func TestFailedCommits(t *testing.T) {
	ways := sqlitetest.Ways{}
	for name, prepare := range map[string]bool{"": false, ",prepare": true} {
		for what, run := range map[string]func(db *gorm.DB, query string) error{
			"Exec": func(db *gorm.DB, query string) error { return db.Exec(query).Error },
			"Transaction": func(db *gorm.DB, query string) error {
				return db.Transaction(func(tx *gorm.DB) error { return tx.Exec(query).Error })
			},
			"Begin": func(db *gorm.DB, query string) error {
				tx := db.Begin()
				defer tx.Rollback()
				if err := tx.Exec(query).Error; err != nil {
					return err
				}
				return tx.Commit().Error
			},
		} {
			ways["gorm "+what+name] = func(ctx context.Context, pool *sql.DB, f *sqlfence.Fence, query string) error {
				db, err := gorm.Open(sqlite.Dialector{Conn: pool}, &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
				if err == nil {
					err = db.Use(gormfence.New(f))
				}
				if err != nil {
					return err
				}
				return run(db.WithContext(ctx), query)
			}
		}
	}
	sqlitetest.FailedCommits(t, sqlitetest.Driver{
		Name: "sqlite", Settings: "_pragma=busy_timeout(10)&_pragma=foreign_keys(1)&_txlock=immediate", Journal: "_pragma=journal_mode=", Leaves: true,
	}, ways)
}
