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
	// One that has a lock of its own too, which the database has not seen, does not wait for those that are open.
	leader := sqlfence.Mark{Resource: "leader", Token: 7, Parallel: true}
	open, err := c.fence.BeginTx(within(t), c.db, c.opts, leader)
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range []string{"a", "z"} { // before the leader and behind
		if err := c.fence.WithTx(within(t), c.db, c.opts, nothing, leader, sqlfence.Mark{Resource: order, Token: 7, Parallel: true}); err != nil {
			t.Errorf("an order beside the leader's open transaction: %v", err)
		}
	}
	if err := c.fence.Commit(within(t), open); err != nil {
		t.Error(err)
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
		return // the first that finds it free has it, with a guard or without
	}
	db := c.connect(t, nil)
	db.SetMaxOpenConns(20)
	w := c.waiter(t)
	const workers = 16
	for i, resource := range []string{"through alone", "through beside"} {
		ctx := sqlfence.WithParallel(sqlfence.WithToken(within(t), resource, 7))
		var busy sync.WaitGroup
		var commits atomic.Int64
		for range workers {
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
		through := make(chan error, 1)
		go func() {
			next := sqlfence.WithToken(within(t), resource, 8)
			if i > 0 {
				next = sqlfence.WithParallel(next)
			}
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
	c     *cell
	db    *sql.DB
	query string
	pause time.Duration // between two looks
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
	var id int64
	if err := w.db.QueryRowContext(within(t), session).Scan(&id); err != nil {
		t.Fatal(err)
	}
	w.query = fmt.Sprintf(w.query, id)
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
	for i, s := range []struct{ open, next sqlfence.Mark }{
		{sqlfence.Mark{Token: 7}, sqlfence.Mark{Token: 7}},
		{sqlfence.Mark{Token: 7}, sqlfence.Mark{Token: 8}},
		{sqlfence.Mark{Token: 7, Parallel: true}, sqlfence.Mark{Token: 8}},
		{sqlfence.Mark{Token: 7, Parallel: true}, sqlfence.Mark{Token: 8, Parallel: true}},
		{sqlfence.Mark{Token: 7}, sqlfence.Mark{Token: 7, Parallel: true}},
		{sqlfence.Mark{Token: 7}, sqlfence.Mark{Token: 8, Parallel: true}},
	} {
		s.open.Resource, s.next.Resource = fmt.Sprint("waited ", i), fmt.Sprint("waited ", i)
		c.exec(t, "INSERT INTO waited VALUES (?, 0)", i)
		if err := c.fence.Advance(within(t), c.db, s.open); err != nil {
			t.Fatal(err)
		}
		open, err := c.fence.BeginTx(within(t), c.db, c.opts, s.open)
		if err != nil {
			t.Fatal(err)
		}
		var read int64
		done := make(chan error, 1)
		go func() {
			done <- c.fence.WithTx(within(t), w.db, c.opts, func(tx *sql.Tx) error {
				return tx.QueryRow(c.q("SELECT n FROM waited WHERE id = ?"), i).Scan(&read)
			}, s.next)
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
			t.Errorf("%v behind %v: got %v, and read %d, want 1", s.next, s.open, err, read)
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
	if err := c.fence.Guard(within(t), tx, next); strict != (err != nil) || strict && !strings.Contains(err.Error(), "Advance") {
		t.Errorf("by hand: got %v", err)
	}
	_ = tx.Rollback()
	if err := c.fence.Advance(within(t), c.db, next); err != nil {
		t.Fatal(err)
	}
	if err := c.fence.Guard(within(t), c.begin(t), next); err != nil {
		t.Errorf("by hand after Advance: got %v", err)
	}
}
