package sqltest

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// BenchmarkGuard compares a transaction that reads a row and writes it back with the same one guarded, in turn, and reports
// the ratio of the medians. The servers do not flush at a commit, which makes the guard look dear.
//
//	go test -run - -bench Guard -benchtime 2000x
func BenchmarkGuard(b *testing.B) {
	for _, engine := range []struct {
		name  string
		cells func(testing.TB) []cell
		cell  string
	}{
		{"PostgreSQL", postgresCells, "read-committed"},
		{"PostgreSQL", postgresCells, "serializable"},
		{"MariaDB", mariaCells, "read-committed,found=false,snapshot=0"},
		{"MariaDB", mariaCells, "repeatable-read,found=false,snapshot=0"},
		{"SQLite", sqliteCells, "wal,immediate"},
	} {
		b.Run(engine.name+"/"+engine.cell, func(b *testing.B) {
			cells := engine.cells(b)
			c := cells[slices.IndexFunc(cells, func(c cell) bool { return c.name == engine.cell })]
			c.open(b)
			c.exec(b, "CREATE TABLE bench (id bigint PRIMARY KEY, n bigint NOT NULL)")
			c.exec(b, "INSERT INTO bench (id, n) VALUES (1, 0)")
			ctx := sqlfence.WithToken(background, "bench", 7)
			work := func(tx *sql.Tx) error {
				var n int64
				if err := tx.QueryRowContext(ctx, c.q("SELECT n FROM bench WHERE id = ?"), 1).Scan(&n); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, c.q("UPDATE bench SET n = ? WHERE id = ?"), n+1, 1)
				return err
			}
			plain := func() error {
				tx, err := c.db.BeginTx(ctx, c.opts)
				if err != nil {
					return err
				}
				defer tx.Rollback()
				if err := work(tx); err != nil {
					return err
				}
				return tx.Commit()
			}
			guarded := func() error { return c.fence.WithTx(ctx, c.db, c.opts, work) }
			took := [2][]time.Duration{}
			for b.Loop() {
				for i, transaction := range []func() error{plain, guarded} {
					began := time.Now()
					if err := transaction(); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(began))
				}
			}
			median := func(d []time.Duration) float64 {
				slices.Sort(d)
				return float64(d[len(d)/2]) / float64(time.Microsecond)
			}
			b.ReportMetric(median(took[0]), "µs/plain")
			b.ReportMetric(median(took[1]), "µs/guarded")
			b.ReportMetric(median(took[1])/median(took[0]), "ratio")
		})
	}
}
