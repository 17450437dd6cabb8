package sqlfence_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

func TestExecRow(t *testing.T) {
	const update = "UPDATE orders SET fence"
	tests := []struct {
		name  string
		query string
		token int64
		has   int64 // before; 0: no row, -1: no number
		want  error
	}{
		{"older row", update, 8, 7, nil},
		{"own row", update, 7, 7, nil},
		{"newer row", update, 6, 7, sqlfence.ErrStale},
		{"twins", update, 8, 7, holdfast.ErrInvalid}, // of which the second is newer
		{"no row", update, 7, 0, sql.ErrNoRows},
		{"hard delete", "DELETE FROM orders", 42, 7, sql.ErrNoRows}, // the fake deletes by its first argument
		{"no number", "UPDATE orders SET status = 'paid'", 8, -1, holdfast.ErrInvalid},
		{"forgotten fence", "UPDATE orders SET status = 'paid'", 8, 7, holdfast.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fake, db := newDB(t)
			if tt.has != 0 {
				fake.rows["orders:42"] = tt.has
			}
			if tt.name == "twins" {
				fake.rows["orders:42'"] = tt.has + 2
			}
			row := sqlfence.Row{Table: "orders", Key: "id", ID: 42, Fence: "fence", Token: tt.token}
			tx := begin(t, db)
			err := newFence(t, sqlfence.SQLite).ExecRow(background, tx, row, tt.query, tt.token, 42)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if done := errors.Is(tx.Commit(), sql.ErrTxDone); done != (tt.want != nil) {
				t.Errorf("rolled back: got %v", done)
			}
		})
	}
}

// An older holder inserts the row when the statement has found none and nothing is locked.
func TestExecRowRunsAgainWhereAnOlderRowAppeared(t *testing.T) {
	for _, tt := range []struct {
		name    string
		query   string
		appears int64
		want    error
		wantOps string
		wantRow int64
	}{
		{"older", "UPDATE orders SET fence", 7, nil, "begin exec read exec read commit", 8},
		{"newer", "UPDATE orders SET fence", 9, sqlfence.ErrStale, "begin exec read rollback", 0},
		{"forgotten fence", "UPDATE orders SET status = 'paid'", 7, holdfast.ErrInvalid, "begin exec read exec read rollback", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake, db := newDB(t)
			fake.read = func() { fake.rows["orders:42"] = tt.appears }
			row := sqlfence.Row{Table: "orders", Key: "id", ID: 42, Fence: "fence", Token: 8}
			tx := begin(t, db)
			err := newFence(t, sqlfence.Postgres).ExecRow(background, tx, row, tt.query, int64(8), 42)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			_ = tx.Commit()
			if got := fake.ops(); got != tt.wantOps || fake.rows["orders:42"] != tt.wantRow {
				t.Errorf("got %s and token %d, want %s and %d", got, fake.rows["orders:42"], tt.wantOps, tt.wantRow)
			}
		})
	}
}
