package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// parallel runs fn under a token, beside others of the same.
func (c *cell) parallel(ctx context.Context, resource string, token int64, fn func(_ context.Context, tx *sql.Tx) error) error {
	return c.fence.WithTx(sqlfence.Mark{Resource: resource, Token: token, Parallel: true}.In(ctx), c.db, c.opts, fn)
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
		run  func(ctx context.Context, resource string, token int64, fn func(_ context.Context, tx *sql.Tx) error) error
	}{{"alone", c.guarded}, {"beside", c.parallel}} {
		const n = 4
		var inside, after sync.WaitGroup
		inside.Add(n)
		end := make(chan struct{})
		for range n {
			after.Go(func() {
				first := sync.OnceFunc(inside.Done) // it may be repeated
				err := c.parallel(within(t), newer.name, 7, func(_ context.Context, tx *sql.Tx) error {
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
		if err := newer.run(within(t), newer.name, 8, func(context.Context, *sql.Tx) error {
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
	// One that has a lock of its own too, which the database has not seen, does not wait for those that are open.
	leader := sqlfence.Mark{Resource: "leader", Token: 7, Parallel: true}
	open, err := c.fence.BeginTx(leader.In(within(t)), c.db, c.opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range []string{"a", "z"} { // before the leader and behind
		if err := c.fence.WithTx(under(within(t), leader, sqlfence.Mark{Resource: order, Token: 7, Parallel: true}), c.db, c.opts, nothing); err != nil {
			t.Errorf("an order beside the leader's open transaction: %v", err)
		}
	}
	if err := c.fence.Commit(within(t), open); err != nil {
		t.Error(err)
	}
	// One that is guarded where it cannot be advanced is refused, not left without a guard.
	marks := sqlfence.Mark{Resource: "behind", Token: 7, Parallel: true}
	if err := c.fence.Guard(marks.In(within(t)), c.begin(t)); err == nil || errors.Is(err, sqlfence.ErrStale) {
		t.Errorf("got %v, want that Advance has to come first", err)
	}
	if err := c.fence.Advance(marks.In(within(t)), c.db); err != nil {
		t.Fatal(err)
	}
	tx := c.begin(t)
	if err := c.fence.Guard(marks.In(within(t)), tx); err != nil {
		t.Error(err)
	}
	must(t, "commit", tx.Commit())
	// It stays advanced when the same holder has run one that is not parallel.
	if err := c.guarded(within(t), marks.Resource, 7, nothing); err != nil {
		t.Error(err)
	}
	if err := c.fence.Guard(marks.In(within(t)), c.begin(t)); err != nil {
		t.Errorf("after one that was alone: %v", err)
	}
}

// testNewerGetsThrough keeps the row shared all the time: there is always an open transaction, and a newer holder gets its turn.
func testNewerGetsThrough(t *testing.T, c *cell) {
	if c.dialect == sqlfence.SQLite {
		return // the first that finds it free has it, with a guard or without
	}
	db := c.connect(t, nil)
	db.SetMaxOpenConns(20)
	w := c.waiter(t)
	const workers = 16
	for i, resource := range []string{"through alone", "through beside"} {
		ctx := sqlfence.Mark{Resource: resource, Token: 7, Parallel: true}.In(within(t))
		var busy sync.WaitGroup
		var commits atomic.Int64
		for range workers {
			busy.Go(func() {
				for {
					err := c.fence.WithTx(ctx, db, c.opts, func(context.Context, *sql.Tx) error { time.Sleep(2 * time.Millisecond); return nil })
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
		through := make(chan error, 1)
		go func() {
			next := sqlfence.Mark{Resource: resource, Token: 8, Parallel: i > 0}.In(within(t))
			through <- c.fence.WithTx(next, w.db, c.opts, nothing)
		}()
		// From when the newer one is seen to wait, only those that were open then may commit.
		seen, before := false, int64(0)
		for done := false; !done; {
			select {
			case err := <-through:
				if done = true; err != nil {
					t.Error(err)
				}
			default:
				if w.waits(t) && !seen {
					seen, before = true, commits.Load()
				}
			}
		}
		after := commits.Load()
		busy.Wait()
		if n := after - before; seen && n > 2*workers {
			t.Errorf("%s: %d transactions of the older one committed while the newer one waited", resource, n)
		}
	}
}

// waiter is a database of one session, of which another one can see that it waits for a lock.
type waiter struct {
	c       *cell
	db      *sql.DB
	session int
	query   string
	pause   time.Duration // between two looks
}

func (c *cell) waiter(t *testing.T) *waiter {
	w := &waiter{c: c, db: c.connect(t, nil), pause: time.Millisecond}
	w.db.SetMaxOpenConns(1)
	w.db.SetMaxIdleConns(1)
	session := "SELECT pg_backend_pid()"
	w.query = "SELECT count(*) FROM pg_locks WHERE pid = %d AND NOT granted"
	if c.dialect == sqlfence.MySQL {
		session, w.pause = "SELECT connection_id()", 110*time.Millisecond // the table shows nothing new while it is read more often
		w.query = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = %d AND trx_state = 'LOCK WAIT'"
	}
	if err := w.db.QueryRowContext(within(t), session).Scan(&w.session); err != nil {
		t.Fatal(err)
	}
	w.query = fmt.Sprintf(w.query, w.session)
	return w
}

func (w *waiter) waits(t *testing.T) bool {
	t.Helper()
	time.Sleep(w.pause)
	var n int
	if err := w.c.db.QueryRowContext(within(t), w.query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// What a transaction reads behind its guard has all that those have committed for which it waited there, whatever its isolation.
func testReadsWhatItWaitedFor(t *testing.T, c *cell) {
	if c.dialect == sqlfence.SQLite {
		return // a transaction that waits there reads nothing before
	}
	c.exec(t, "CREATE TABLE waited (id bigint PRIMARY KEY, n bigint)")
	w := c.waiter(t)
	rolledBack := func(resource string) {
		tx := c.begin(t)
		_ = c.fence.Guard(mark(resource, 9).In(within(t)), tx)
		_ = tx.Rollback()
	}
	alone := func(resource string) {
		if err := c.guarded(within(t), resource, 7, nothing); err != nil {
			t.Error(err)
		}
	}
	for i, s := range []struct {
		open, next sqlfence.Mark
		advance    sqlfence.Mark         // before
		then       func(resource string) // if not nil
	}{
		{open: sqlfence.Mark{Token: 7}, next: sqlfence.Mark{Token: 7}},
		{open: sqlfence.Mark{Token: 7}, next: sqlfence.Mark{Token: 8}},
		{open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8}},
		{open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8, Parallel: true}},
		{open: sqlfence.Mark{Token: 7}, next: sqlfence.Mark{Token: 7, Parallel: true}},
		{open: sqlfence.Mark{Token: 7}, next: sqlfence.Mark{Token: 8, Parallel: true}},
		{advance: sqlfence.Mark{Token: 7, Parallel: true}, open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8}},
		// A holder that was alone is parallel, one that was parallel is alone, or another one tried.
		{advance: sqlfence.Mark{Token: 7}, open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8}},
		{advance: sqlfence.Mark{Token: 7, Parallel: true}, then: alone, open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8}},
		{advance: sqlfence.Mark{Token: 7, Parallel: true}, then: rolledBack, open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8}},
		{advance: sqlfence.Mark{Token: 6, Parallel: true}, then: alone, open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8}},
		{advance: sqlfence.Mark{Token: 6, Parallel: true}, open: sqlfence.Mark{Token: 7, Parallel: true}, next: sqlfence.Mark{Token: 8, Parallel: true}},
	} {
		s.open.Resource, s.next.Resource, s.advance.Resource = fmt.Sprint("waited ", i), fmt.Sprint("waited ", i), fmt.Sprint("waited ", i)
		c.exec(t, "INSERT INTO waited VALUES (?, 0)", i)
		if s.advance.Token == 0 {
			s.advance = s.open
		}
		if err := c.fence.Advance(s.advance.In(within(t)), c.db); err != nil {
			t.Fatal(err)
		}
		if s.then != nil {
			s.then(s.open.Resource)
		}
		open, err := c.fence.BeginTx(s.open.In(within(t)), c.db, c.opts)
		if err != nil {
			t.Fatal(err)
		}
		var read int64
		done := make(chan error, 1)
		go func() {
			done <- c.fence.WithTx(s.next.In(within(t)), w.db, c.opts, func(_ context.Context, tx *sql.Tx) error {
				return tx.QueryRow(c.q("SELECT n FROM waited WHERE id = ?"), i).Scan(&read)
			})
		}()
		for !w.waits(t) {
		}
		if _, err := open.Exec(c.q("UPDATE waited SET n = 1 WHERE id = ?"), i); err != nil {
			t.Fatal(err)
		}
		if err := c.fence.Commit(within(t), open); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || read != 1 {
			t.Errorf("%d, %v behind %v: got %v, and read %d, want 1", i, s.next, s.open, err, read)
		}
	}
	if c.dialect != sqlfence.Postgres {
		return
	}
	// By hand: a guard whose snapshot is from before is refused, as nobody is there to begin again.
	mine := sqlfence.Mark{Resource: "waited by hand", Token: 7, Parallel: true}
	if err := c.parallel(within(t), mine.Resource, 7, nothing); err != nil {
		t.Fatal(err)
	}
	next := sqlfence.Mark{Resource: mine.Resource, Token: 8}
	strict := c.opts != nil && c.opts.Isolation > sql.LevelReadCommitted
	tx := c.begin(t)
	if err := c.fence.Guard(next.In(within(t)), tx); strict != (err != nil) || strict && !strings.Contains(err.Error(), "Advance") {
		t.Errorf("by hand: got %v", err)
	}
	_ = tx.Rollback()
	if err := c.fence.Advance(next.In(within(t)), c.db); err != nil {
		t.Fatal(err)
	}
	if err := c.fence.Guard(next.In(within(t)), c.begin(t)); err != nil {
		t.Errorf("by hand after Advance: got %v", err)
	}
}
