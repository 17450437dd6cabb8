package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

// bounds are those that the package's description gives for a holder that is paused with its transaction open.
// paused is a statement that has the server end such a transaction, and wait one that bounds the wait for it.
func testBounds(t *testing.T, c *cell, paused, wait string) {
	open := func(t *testing.T, settings ...string) *sql.Tx {
		tx := c.begin(t)
		for _, s := range settings {
			if _, err := tx.Exec(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.fence.Guard(mark("bounds", 1000).In(within(t)), tx); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	t.Run("context", func(t *testing.T) {
		if c.dialect == sqlfence.SQLite {
			t.Skip("modernc.org/sqlite waits for as long as busy_timeout says, whatever becomes of the context")
		}
		open(t)
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := c.guarded(ctx, "bounds", 2000, nothing)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sqlfence.ErrCommitUnknown) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("it took %v", d)
		}
	})
	if wait != "" {
		t.Run("wait", func(t *testing.T) {
			open(t)
			conn, err := c.db.Conn(within(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			defer conn.Raw(func(any) error { return driver.ErrBadConn }) // or the bound is the next one's too
			if _, err := conn.ExecContext(within(t), wait); err != nil {
				t.Fatal(err)
			}
			ctx := sqlfence.Mark{Resource: "bounds", Token: 2000}.In(within(t))
			attempts := 0
			err = c.fence.WithTx(ctx, beginsOf{conn, &attempts}, c.opts, nothing)
			if err == nil || ctx.Err() != nil || attempts != 1 {
				t.Errorf("got %v after %d attempts, want the wait ended by the database, once", err, attempts)
			}
			t.Log(err)
		})
	}
	if paused != "" {
		t.Run("paused", func(t *testing.T) {
			tx := open(t, paused)
			if err := c.guarded(within(t), "bounds", 2000, nothing); err != nil {
				t.Errorf("the next holder: %v", err)
			}
			if err := tx.Commit(); err == nil {
				t.Error("the paused holder could commit")
			}
			wantStale(t, c.guarded(within(t), "bounds", 1000, nothing), sqlfence.StaleError{Resource: "bounds", Token: 1000, Current: 2000})
		})
	}
}

// testDeadlock guards two resources one by one and in both orders, which WithTx would not. MySQL has ended the
// loser's transaction by then, and would commit by itself what comes after it.
func testDeadlock(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE deadlock (n bigint)")
	var txs [2]*sql.Tx
	for i, resource := range []string{"deadlock:0", "deadlock:1"} {
		txs[i] = c.begin(t)
		if err := c.fence.Guard(mark(resource, 7).In(within(t)), txs[i]); err != nil {
			t.Fatal(err)
		}
	}
	var errs [2]error
	var both sync.WaitGroup
	for i, resource := range []string{"deadlock:1", "deadlock:0"} {
		both.Go(func() {
			if errs[i] = c.fence.Guard(mark(resource, 7).In(within(t)), txs[i]); errs[i] != nil {
				_, err := txs[i].Exec("INSERT INTO deadlock (n) VALUES (1)")
				if !errors.Is(err, sql.ErrTxDone) {
					t.Errorf("write after %v: got %v, want %v", errs[i], err, sql.ErrTxDone)
				}
			}
		})
	}
	both.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("got %v and %v, want one deadlock", errs[0], errs[1])
	}
	if got := c.number(t, "SELECT count(*) FROM deadlock"); got != 0 {
		t.Errorf("the loser's write was committed by itself")
	}
}

// testGuardGone has fn take no notice of what ended its transaction on MySQL. What runs after that is committed
// statement by statement, or in a transaction that the server begins by itself with autocommit off.
func testGuardGone(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE gone (id bigint PRIMARY KEY, n bigint NOT NULL)")
	c.exec(t, "INSERT INTO gone (id, n) VALUES (1, 0), (2, 0)")
	for _, autocommit := range []string{"1", "0"} {
		for name, end := range map[string]func(t *testing.T, tx *sql.Tx){
			"deadlock": func(t *testing.T, tx *sql.Tx) { loseDeadlock(t, c, tx) },
			"DDL": func(t *testing.T, tx *sql.Tx) {
				if _, err := tx.Exec("CREATE TABLE IF NOT EXISTS committed (n bigint)"); err != nil {
					t.Fatal(err)
				}
			},
			"BEGIN": func(t *testing.T, tx *sql.Tx) {
				if _, err := tx.Exec("BEGIN"); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(name+",autocommit="+autocommit, func(t *testing.T) {
				conn, err := c.db.Conn(within(t))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := conn.ExecContext(within(t), "SET autocommit = "+autocommit); err != nil {
					t.Fatal(err)
				}
				defer conn.ExecContext(background, "SET autocommit = 1")
				runs := 0
				ctx := sqlfence.Mark{Resource: "gone", Token: 7}.In(within(t))
				err = c.fence.WithTx(ctx, conn, nil, func(_ context.Context, tx *sql.Tx) error {
					runs++
					end(t, tx)
					_, err := tx.Exec("UPDATE gone SET n = n + 1 WHERE id = 1")
					return err
				})
				if !errors.Is(err, sqlfence.ErrCommitUnknown) || runs != 1 {
					t.Errorf("got %v after %d runs, want %v after one", err, runs, sqlfence.ErrCommitUnknown)
				}
				t.Log(err)
			})
		}
	}
	// fn returns an error: what ran before the end is there, and must not be written twice.
	for name, failure := range map[string]error{"an error": errAbort, "a lock timeout": mysqlTransient{1205}} {
		t.Run("DDL and "+name, func(t *testing.T) {
			c.exec(t, "UPDATE gone SET n = 0")
			runs := 0
			ctx, release := heldLock(t)
			err := c.fence.WithTx(ctx, c.db, nil, func(_ context.Context, tx *sql.Tx) error {
				runs++
				for _, query := range []string{"UPDATE gone SET n = n + 1 WHERE id = 1", "CREATE TABLE IF NOT EXISTS committed (n bigint)"} {
					if _, err := tx.Exec(query); err != nil {
						return err
					}
				}
				release() // whatever becomes of the lock
				return failure
			})
			if !errors.Is(err, sqlfence.ErrCommitUnknown) || !errors.Is(err, failure) || !errors.Is(err, holdfast.ErrLost) || runs != 1 {
				t.Errorf("got %v after %d runs, want %v, %v and %v after one", err, runs, sqlfence.ErrCommitUnknown, failure, holdfast.ErrLost)
			}
			if n := c.number(t, "SELECT n FROM gone WHERE id = 1"); n != 1 {
				t.Errorf("it was written %d times, want once", n)
			}
		})
	}
	t.Run("own savepoints", func(t *testing.T) {
		err := c.guarded(within(t), "gone", 7, func(_ context.Context, tx *sql.Tx) error {
			for _, query := range []string{
				"SAVEPOINT mine", "UPDATE gone SET n = n + 1 WHERE id = 1", "ROLLBACK TO SAVEPOINT mine", "CREATE TEMPORARY TABLE own (n bigint)",
			} {
				if _, err := tx.Exec(query); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// loseDeadlock has tx be the victim of one: the one with less written is.
func loseDeadlock(t *testing.T, c *cell, tx *sql.Tx) {
	other := c.begin(t)
	exec := func(tx *sql.Tx, query string) error { _, err := tx.ExecContext(within(t), query); return err }
	for _, err := range []error{
		exec(other, "INSERT INTO gone (id, n) SELECT seq, 0 FROM seq_100_to_400"),
		exec(other, "UPDATE gone SET n = n + 1 WHERE id = 2"),
		exec(tx, "UPDATE gone SET n = n + 1 WHERE id = 1"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	waits := make(chan error, 1)
	go func() { waits <- exec(other, "UPDATE gone SET n = n + 1 WHERE id = 1") }()
	err := exec(tx, "UPDATE gone SET n = n + 1 WHERE id = 2")
	if err == nil || !strings.Contains(err.Error(), "1213") {
		t.Errorf("got %v, want a deadlock", err)
	}
	if err := <-waits; err != nil {
		t.Errorf("the other one: %v", err)
	}
	if err := other.Rollback(); err != nil {
		t.Error(err)
	}
}

// heldLock is a context with a lock, which does not end when the lock is released.
func heldLock(t *testing.T) (ctx context.Context, release func()) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Shutdown(background); _ = rdb.Close() })
	lock, err := locker.Acquire(within(t), fmt.Sprintf("held:%d", databases.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	return context.WithoutCancel(lock.Context(within(t))), func() {
		if err := lock.Release(within(t)); err != nil {
			t.Error(err)
		}
	}
}

type mysqlTransient struct{ Number uint16 }

func (mysqlTransient) Error() string { return "transient" }
