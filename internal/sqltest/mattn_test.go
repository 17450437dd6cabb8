//go:build cgo

package sqltest

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/sqltest/sqlitetest"
	_ "github.com/mattn/go-sqlite3"
)

func TestFailedCommitsOfMattn(t *testing.T) {
	t.Parallel()
	sqlitetest.FailedCommits(t, sqlitetest.Driver{
		Name: "sqlite3", Settings: "_busy_timeout=10&_foreign_keys=1&_txlock=immediate", Journal: "_journal_mode=",
	}, nil)
}
