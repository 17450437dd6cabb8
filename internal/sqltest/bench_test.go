package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
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
			ctx := sqlfence.Mark{Resource: "bench", Token: 7}.In(background)
			work := func(_ context.Context, tx *sql.Tx) error {
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
				if err := work(ctx, tx); err != nil {
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

// BenchmarkParallel has 1 and 16 callers do transactions of a plain write and some time of work: without a guard, with one in
// parallel, and with one that has them take turns. It reports transactions per second, rounds of the three in turn, and the
// ratios of the medians to the plain ones.
//
//	go test -run - -bench Parallel -benchtime 5x
func BenchmarkParallel(b *testing.B) {
	for _, engine := range []struct {
		name  string
		cells func(testing.TB) []cell
		cell  string
	}{
		{"PostgreSQL", postgresCells, "read-committed"},
		{"PostgreSQL", postgresCells, "serializable"},
		{"MariaDB", mariaCells, "repeatable-read,found=false,snapshot=0"},
	} {
		cells := engine.cells(b)
		c := cells[slices.IndexFunc(cells, func(c cell) bool { return c.name == engine.cell })]
		c.open(b)
		c.exec(b, "CREATE TABLE bench (id bigint PRIMARY KEY, n bigint NOT NULL)")
		for _, callers := range []int{1, 16} {
			c.db.SetMaxOpenConns(callers)
			c.db.SetMaxIdleConns(callers)
			for _, work := range []time.Duration{0, 2 * time.Millisecond, 20 * time.Millisecond} {
				b.Run(fmt.Sprintf("%s/%s/callers=%d/work=%v", engine.name, engine.cell, callers, work), func(b *testing.B) {
					c.benchParallel(b, callers, work)
				})
			}
		}
	}
}

func (c *cell) benchParallel(b *testing.B, callers int, work time.Duration) {
	c.exec(b, "DELETE FROM bench")
	for id := range callers {
		c.exec(b, "INSERT INTO bench (id, n) VALUES (?, 0)", id)
	}
	mark := sqlfence.Mark{Resource: "bench", Token: 7}
	ctx := mark.In(background)
	mark.Parallel = true
	beside := mark.In(background)
	ways := []func(fn func(context.Context, *sql.Tx) error) error{
		func(fn func(context.Context, *sql.Tx) error) error {
			tx, err := c.db.BeginTx(ctx, c.opts)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := fn(ctx, tx); err != nil {
				return err
			}
			return tx.Commit()
		},
		func(fn func(context.Context, *sql.Tx) error) error {
			return c.fence.WithTx(beside, c.db, c.opts, fn)
		},
		func(fn func(context.Context, *sql.Tx) error) error { return c.fence.WithTx(ctx, c.db, c.opts, fn) },
	}
	rates, failed := [3][]float64{}, [3]int{}
	for b.Loop() {
		for i, way := range ways {
			ctx, cancel := context.WithTimeout(background, 400*time.Millisecond)
			done, failures := make([]int, callers), make([]int, callers)
			began := time.Now()
			var all sync.WaitGroup
			for id := range callers {
				all.Go(func() {
					for ctx.Err() == nil {
						err := way(func(_ context.Context, tx *sql.Tx) error {
							if _, err := tx.Exec(c.q("UPDATE bench SET n = n + 1 WHERE id = ?"), id); err != nil {
								return err
							}
							time.Sleep(work)
							return nil
						})
						if err != nil {
							failures[id]++
							continue
						}
						done[id]++
					}
				})
			}
			all.Wait()
			cancel()
			for id := range callers {
				done[0] += done[id] * min(id, 1)
				failed[i] += failures[id]
			}
			rates[i] = append(rates[i], float64(done[0])/time.Since(began).Seconds())
		}
	}
	median := func(i int) float64 {
		slices.Sort(rates[i])
		return rates[i][len(rates[i])/2]
	}
	for i, name := range []string{"plain", "parallel", "turns"} {
		b.ReportMetric(median(i), name+"/s")
		b.ReportMetric(median(i)/median(0), name+"/plain")
		if failed[i] > 0 {
			b.ReportMetric(float64(failed[i]), name+"-failed")
		}
	}
}
