package gormfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/sqlfence"
	"gorm.io/gorm"
)

// mysqlError has the shape of go-sql-driver's.
type mysqlError struct{ Number uint16 }

func (e *mysqlError) Error() string { return fmt.Sprint("Error ", e.Number) }

// wordy is none of those.
type wordy struct{ Number string }

func (e wordy) Error() string { return "Error 1305" }

type rolledBack struct {
	gorm.Tx
	n int
}

func (r *rolledBack) Rollback() error { r.n++; return nil }

// A savepoint that is gone is told by the number of the error, and by nothing else where the context has ended too.
func TestASavepointThatIsGone(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		err             error
		unknown, within bool // an ErrCommitUnknown after the context has ended, and within it
	}{
		{&mysqlError{1305}, true, true},
		{fmt.Errorf("other plugin: %w", &mysqlError{1305}), true, true},
		{&mysqlError{1317}, false, true},
		{errors.New("Error 1305"), false, true},
		{wordy{"1305"}, false, true},
		{driver.ErrBadConn, false, false},
		{sql.ErrTxDone, false, false},
	} {
		for _, ctx := range []context.Context{ended, t.Context()} {
			below := &rolledBack{}
			err := (&tx{Tx: below, ctx: ctx}).gone(tt.err)
			want := tt.within
			if ctx == ended {
				want = tt.unknown
			}
			if errors.Is(err, sqlfence.ErrCommitUnknown) != want || !errors.Is(err, tt.err) || below.n != 1 {
				t.Errorf("%v: got %v after %d rollbacks, want it unknown: %t", tt.err, err, below.n, want)
			}
			if errors.Is(err, context.Canceled) != (ctx == ended) {
				t.Errorf("%v: got %v, want the context's error: %t", tt.err, err, ctx == ended)
			}
		}
	}
}
