package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/glebarez/sqlite"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/sqlfence"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
)

func openDatabase() (dialect sqlfence.Dialect, db *gorm.DB, closeAll func() error, err error) {
	u, err := backend.DatabaseURL()
	if err != nil {
		return 0, nil, nil, err
	}
	var dir string
	var dialector gorm.Dialector
	if u != nil {
		dialect, dialector = sqlfence.Postgres, postgres.Open(u.String())
	} else {
		if dir, err = os.MkdirTemp("", "holdfast-gorm-"); err != nil {
			return 0, nil, nil, err
		}
		// A transaction takes the write lock when it begins, and waits for it. One that finds out later that it needs the
		// lock is refused.
		file := "file:" + filepath.ToSlash(filepath.Join(dir, "bank.db")) + "?_txlock=immediate&_pragma=busy_timeout(10000)"
		dialect, dialector = sqlfence.SQLite, sqlite.Open(file)
	}
	db, err = gorm.Open(dialector)
	if err != nil {
		return 0, nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dialect, db, func() error {
		pool, err := db.DB() // past the guard, as there is no lock
		if err == nil {
			_, accounts := pool.Exec("DROP TABLE IF EXISTS holdfast_example_accounts")
			_, fence := pool.Exec("DROP TABLE IF EXISTS holdfast_example_fence")
			err = errors.Join(accounts, fence, pool.Close())
		}
		return errors.Join(err, os.RemoveAll(dir))
	}, nil
}
