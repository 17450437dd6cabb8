package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"slices"
	"testing"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

func TestCommit(t *testing.T) {
	broken := io.ErrUnexpectedEOF
	for _, tt := range []struct {
		name string
		end  bool  // the context, before COMMIT
		fail error // of COMMIT
		want []error
	}{
		{name: "committed"},
		{name: "ended before", end: true, want: []error{context.Canceled}},
		{name: "broken", fail: broken, want: []error{sqlfence.ErrCommitUnknown, broken}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake, db := newFake()
			fence, err := sqlfence.New(sqlfence.Postgres)
			if err != nil {
				t.Fatal(err)
			}
			if tt.fail != nil {
				fake.fail["commit"] = []error{tt.fail}
			}
			ctx, cancel := context.WithCancel(sqlfence.Mark{Resource: "r", Token: 7}.In(t.Context()))
			defer cancel()
			// Guarded by hand: database/sql rolls back what it has begun with a context that ends.
			tx, err := db.BeginTx(t.Context(), nil)
			if err == nil {
				err = fence.Guard(ctx, tx)
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.end {
				cancel()
			}
			err = fence.Commit(ctx, tx)
			for _, want := range tt.want {
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			}
			if len(tt.want) == 0 && err != nil {
				t.Error(err)
			}
			if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("the transaction is still open: %v", err)
			}
			if ops := fake.ops(); tt.end && ops != "begin raise rollback" {
				t.Errorf("got %s, want a rollback and no COMMIT", ops)
			}
		})
	}
	var none *sqlfence.Fence
	if err := none.Commit(t.Context(), &sql.Tx{}); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("without a Fence: got %v, want %v", err, holdfast.ErrInvalid)
	}
	fence, _ := sqlfence.New(sqlfence.Postgres)
	if err := fence.Commit(t.Context(), (*sql.Tx)(nil)); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("without a transaction: got %v, want %v", err, holdfast.ErrInvalid)
	}
	var nowhere context.Context
	if err := fence.Commit(nowhere, &sql.Tx{}); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("without a context: got %v, want %v", err, holdfast.ErrInvalid)
	}
}

func TestMarks(t *testing.T) {
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := fence.Marks(t.Context()); got != nil || !errors.Is(err, sqlfence.ErrNoToken) {
		t.Errorf("without a token: got %v, %v, want %v", got, err, sqlfence.ErrNoToken)
	}
	ctx := sqlfence.Mark{Resource: "a", Token: 1}.In(sqlfence.Mark{Resource: "b", Token: 2}.In(t.Context()))
	want := []sqlfence.Mark{{Resource: "a", Token: 1}, {Resource: "b", Token: 2}}
	if got, err := fence.Marks(ctx); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := fence.Marks(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("of an ended context: got %v, want %v", err, context.Canceled)
	}
}
