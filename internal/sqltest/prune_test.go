package sqltest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// testPruneWaits has Prune wait for a row, as it does on MySQL: no guard waits for Prune meanwhile.
func testPruneWaits(t *testing.T, c *cell) {
	f, err := sqlfence.New(c.dialect, sqlfence.WithTable("prune_waits"))
	if err != nil {
		t.Fatal(err)
	}
	c.exec(t, f.DDL())
	old, now := time.Now().Add(-3*time.Hour).UnixMicro(), time.Now().UnixMicro()
	if err := f.Advance(under(within(t), mark("a", old), mark("b", old), mark("c", old)), c.db); err != nil {
		t.Fatal(err)
	}
	open, err := f.BeginTx(mark("b", now).In(within(t)), c.db, c.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback()
	type result struct {
		deleted int64
		err     error
	}
	pruned := make(chan result, 1)
	go func() {
		n, err := f.Prune(within(t), c.db, time.Hour)
		pruned <- result{n, err}
	}()
	for ctx := within(t); c.number(t, "SELECT count(*) FROM prune_waits WHERE resource = 'a'") > 0; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("Prune keeps the row before the one that it waits for")
		}
	}
	for _, resource := range []string{"a", "c"} {
		if err := f.Advance(mark(resource, now).In(within(t)), c.db); err != nil {
			t.Error(err)
		}
	}
	select {
	case got := <-pruned:
		t.Errorf("Prune has not waited: %+v", got)
	default:
	}
	if err := f.Commit(within(t), open); err != nil {
		t.Error(err)
	}
	if got := <-pruned; got != (result{1, nil}) { // b and c have been raised since
		t.Errorf("got %+v, want one deleted", got)
	}
}

func testPrune(t *testing.T, c *cell) {
	f, err := sqlfence.New(c.dialect, sqlfence.WithTable("pruned"), sqlfence.WithRetries(100))
	if err != nil {
		t.Fatal(err)
	}
	c.exec(t, f.DDL())
	now := time.Now()
	old, young, odd := now.Add(-3*time.Hour).UnixMicro(), now.Add(-time.Hour).UnixMicro(), int64(7)
	var stays []sqlfence.Mark
	const n = 250 // three batches
	for i := range n {
		c.exec(t, "INSERT INTO pruned (resource, token) VALUES (?, ?)", fmt.Sprintf("old:%d:é'", i), old)
		if m := mark(fmt.Sprintf("odd:%d", i), []int64{young, odd, old + int64(2*time.Hour/time.Microsecond)}[i%3]); i%10 == 0 {
			stays = append(stays, m)
			c.exec(t, "INSERT INTO pruned (resource, token) VALUES (?, ?)", m.Resource, m.Token)
		}
	}
	for _, d := range []time.Duration{-time.Hour, 0, time.Hour - 1} {
		if n, err := f.Prune(within(t), c.db, d); n != 0 || !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("Prune(%v): got %d, %v", d, n, err)
		}
	}
	// Guards run beside it, and one has a row to be pruned raised before, and open.
	tx := c.begin(t)
	late := sqlfence.Mark{Resource: "old:7:é'", Token: now.UnixMicro()}
	if c.dialect != sqlfence.Postgres {
		_ = tx.Rollback()
	} else if err := f.Guard(late.In(within(t)), tx); err != nil {
		t.Fatal(err)
	}
	var beside sync.WaitGroup
	for i := range 2 {
		beside.Go(func() {
			for k := range 20 {
				if err := f.Advance(mark(fmt.Sprintf("beside:%d", i), now.UnixMicro()+int64(k)).In(within(t)), c.db); err != nil {
					t.Error(err)
				}
			}
		})
	}
	deleted, err := f.Prune(within(t), c.db, 2*time.Hour)
	beside.Wait()
	want := int64(n)
	if c.dialect == sqlfence.Postgres {
		want--
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
		stays = append(stays, late)
	}
	if deleted != want || err != nil {
		t.Errorf("got %d, %v, want %d", deleted, err, want)
	}
	stays = append(stays, mark("beside:0", now.UnixMicro()+19), mark("beside:1", now.UnixMicro()+19))
	for _, m := range stays {
		if got, err := f.Current(within(t), c.db, m.Resource); got != m.Token || err != nil {
			t.Errorf("%s: got %d, %v, want %d", m.Resource, got, err, m.Token)
		}
	}
	if got := c.number(t, "SELECT COUNT(*) FROM pruned"); got != int64(len(stays)) {
		t.Errorf("%d rows are left, want %d", got, len(stays))
	}
	// A holder that is still there with an old token goes on.
	for range 2 {
		for _, parallel := range []bool{false, true} {
			ctx := sqlfence.Mark{Resource: "old:9:é'", Token: old, Parallel: parallel}.In(within(t))
			if err := f.WithTx(ctx, c.db, c.opts, nothing); err != nil {
				t.Error(err)
			}
		}
		if n, err := f.Prune(within(t), c.db, 2*time.Hour); n != 1 || err != nil {
			t.Errorf("again: got %d, %v", n, err)
		}
	}
}
