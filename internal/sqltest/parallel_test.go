package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// parallel runs fn under a token, beside others of the same.
func (c *cell) parallel(ctx context.Context, resource string, token int64, fn func(tx *sql.Tx) error) error {
	return c.fence.WithTx(sqlfence.WithParallel(sqlfence.WithToken(ctx, resource, token)), c.db, c.opts, fn)
}

// Transactions of one token are open together, a newer one waits for them, and then they are refused.
func testParallel(t *testing.T, c *cell) {
	if c.dialect == sqlfence.SQLite {
		// It has one writer: they take turns.
		for _, token := range []int64{7, 7, 8} {
			if err := c.parallel(within(t), "parallel", token, nothing); err != nil {
				t.Error(err)
			}
		}
		wantStale(t, c.parallel(within(t), "parallel", 7, nothing), sqlfence.StaleError{Resource: "parallel", Token: 7, Current: 8})
		return
	}
	for _, newer := range []struct {
		name string
		run  func(ctx context.Context, resource string, token int64, fn func(tx *sql.Tx) error) error
	}{{"alone", c.guarded}, {"beside", c.parallel}} {
		const n = 4
		var inside, after sync.WaitGroup
		inside.Add(n)
		end := make(chan struct{})
		for range n {
			after.Go(func() {
				first := sync.OnceFunc(inside.Done) // it may be repeated
				err := c.parallel(within(t), newer.name, 7, func(tx *sql.Tx) error {
					first()
					select {
					case <-end:
					case <-within(t).Done():
						t.Error("not open together")
					}
					return nil
				})
				if first(); err != nil {
					t.Error(err)
				}
			})
		}
		inside.Wait()
		var ended atomic.Bool
		time.AfterFunc(30*time.Millisecond, func() { ended.Store(true); close(end) })
		if err := newer.run(within(t), newer.name, 8, func(*sql.Tx) error {
			if !ended.Load() {
				t.Error("the newer one is past the guard while older ones are open")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		after.Wait()
		want := sqlfence.StaleError{Resource: newer.name, Token: 7, Current: 8}
		wantStale(t, c.parallel(within(t), newer.name, 7, nothing), want)
		wantStale(t, c.guarded(within(t), newer.name, 7, nothing), want)
	}
	// One that is guarded where it cannot be advanced is refused, not left without a guard.
	marks := sqlfence.Mark{Resource: "behind", Token: 7, Parallel: true}
	if err := c.fence.Guard(within(t), c.begin(t), marks); err == nil || errors.Is(err, sqlfence.ErrStale) {
		t.Errorf("got %v, want that Advance has to come first", err)
	}
	if err := c.fence.Advance(within(t), c.db, marks); err != nil {
		t.Fatal(err)
	}
	if err := c.fence.Guard(within(t), c.begin(t), marks); err != nil {
		t.Error(err)
	}
}

// testNewerGetsThrough keeps the row shared all the time: there is always an open transaction, and a newer holder gets its turn.
func testNewerGetsThrough(t *testing.T, c *cell) {
	if c.dialect == sqlfence.SQLite {
		return // whoever finds it free has it, with a guard or without
	}
	db := c.connect(t, nil)
	db.SetMaxOpenConns(20)
	for i, newer := range []func(ctx context.Context, resource string, token int64, fn func(tx *sql.Tx) error) error{c.guarded, c.parallel} {
		resource := []string{"through alone", "through beside"}[i]
		ctx := sqlfence.WithParallel(sqlfence.WithToken(within(t), resource, 7))
		var busy sync.WaitGroup
		var commits atomic.Int64
		for range 16 {
			busy.Go(func() {
				for {
					err := c.fence.WithTx(ctx, db, c.opts, func(*sql.Tx) error { time.Sleep(2 * time.Millisecond); return nil })
					if errors.Is(err, sqlfence.ErrStale) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					commits.Add(1)
				}
			})
		}
		for commits.Load() < 50 && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
		if err := c.db.PingContext(within(t)); err != nil { // so that the newer one has a connection
			t.Fatal(err)
		}
		before := commits.Load()
		if err := newer(within(t), resource, 8, nothing); err != nil {
			t.Error(err)
		}
		between := commits.Load() - before
		busy.Wait()
		t.Logf("%d transactions of the older one committed meanwhile", between)
		if between > 600 { // those that were open, and on a busy machine those that begin before it waits
			t.Errorf("%d transactions committed before the newer one had its turn", between)
		}
	}
}
