package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/sqlfence"
)

func TestSQLiteRollsBackACommitThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fake, db := newDB(t)
		fake.fail["commit"] = []error{&sqliteError{5}}
		if err := newFence(t, sqlfence.SQLite).WithTx(token(7), db, nil, write); err != nil {
			t.Error(err)
		}
		did(t, fake, "WithTx", "begin raise exec commit rollback begin raise exec commit")
		tx, err := newFence(t, sqlfence.SQLite).BeginTx(token(7), db, nil)
		if err != nil {
			t.Fatal(err)
		}
		fake.fail["commit"] = []error{&sqliteError{5}}
		if err := newFence(t, sqlfence.SQLite).Commit(token(7), tx); err == nil || errors.Is(err, sqlfence.ErrCommitUnknown) {
			t.Errorf("got %v, want COMMIT refused", err)
		}
		did(t, fake, "Commit", "begin raise commit rollback")
	})
}

// What ends after COMMIT has succeeded does not undo it.
func TestSQLiteHasCommittedIfTheContextEndsThen(t *testing.T) {
	fake, db := newDB(t)
	ctx, cancel := context.WithCancel(token(7))
	defer cancel()
	fake.done = cancel
	if err := newFence(t, sqlfence.SQLite).WithTx(ctx, db, nil, write); err != nil {
		t.Error(err)
	}
}

// hookedTx is a transaction of a library that writes in its Commit.
type hookedTx struct{ *sql.Tx }

func (t hookedTx) Commit() error {
	if _, err := t.Exec("UPDATE outbox"); err != nil {
		return err
	}
	return t.Tx.Commit()
}

func TestSQLiteCommitsWhatALibraryWritesInItsCommit(t *testing.T) {
	fake, db := newDB(t)
	f, tx := newFence(t, sqlfence.SQLite), hookedTx{begin(t, db)}
	if err := f.Guard(token(7), tx); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(token(7), tx); err != nil {
		t.Error(err)
	}
	did(t, fake, "Commit", "begin raise exec commit")
}
