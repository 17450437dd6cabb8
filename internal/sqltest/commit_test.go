package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/pgxfence"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/lib/pq"
)

// transact runs fn in a guarded transaction, on connections that may break.
type transact func(ctx context.Context, fn func()) error

func testBrokenCommit(t *testing.T, c *cell) {
	if c.dialect == sqlfence.SQLite {
		t.Skip("there is no connection")
	}
	f := &faults{}
	db := c.connect(t, f.dial)
	brokenCommits(t, c, f, "", c.transact(db))
	// Advance does not mind.
	for _, cut := range []int32{cutBefore, cutAfter} {
		f.next.Store(cut)
		if err := c.fence.Advance(mark("cut", 9).In(within(t)), db); err != nil {
			t.Errorf("Advance: %v", err)
		}
	}
}

func (c *cell) transact(db *sql.DB) transact {
	return func(ctx context.Context, fn func()) error {
		return c.fence.WithTx(ctx, db, c.opts, func(context.Context, *sql.Tx) error { fn(); return nil })
	}
}

// brokenCommits cuts the connection just before COMMIT arrives, and just before its answer does, and ends the context
// in between.
func brokenCommits(t *testing.T, c *cell, f *faults, driver string, run transact) {
	for _, tt := range []struct {
		name string
		what int32
		want int64 // the token that is in the database: of what was committed, or else of who looks
	}{{"before", cutBefore, 1}, {"after", cutAfter, 7}, {"within", endWithin, 7}} {
		resource := "cut:" + driver + ":" + tt.name
		ctx, cancel := context.WithCancel(within(t))
		f.end = cancel
		runs := 0
		err := run(sqlfence.Mark{Resource: resource, Token: 7}.In(ctx), func() {
			runs++
			f.next.Store(tt.what)
		})
		cancel()
		// A driver may wait for the answer whatever becomes of the context, and have the server break COMMIT off.
		broken := err != nil && strings.Contains(err.Error(), "canceling statement")
		certain := tt.what == endWithin && (err == nil || broken)
		if !certain && !errors.Is(err, sqlfence.ErrCommitUnknown) || runs != 1 {
			t.Errorf("%s: got %v after %d runs, want %v after one", tt.name, err, runs, sqlfence.ErrCommitUnknown)
		}
		// A transaction that gets past the guard has waited for the end of it.
		if err := c.fence.Advance(mark(resource, 1).In(within(t)), c.db); err != nil && !errors.Is(err, sqlfence.ErrStale) {
			t.Errorf("%s: %v", tt.name, err)
		}
		got, err := c.fence.Current(within(t), c.db, resource)
		canceled := tt.what == endWithin && (!certain || broken) && got == 1 // drivers ask the server to break off what they gave up
		if got != tt.want && !canceled || err != nil {
			t.Errorf("%s: the database has token %d, %v, want %d", tt.name, got, err, tt.want)
		}
	}
}

// testIdle has PostgreSQL end a session before COMMIT reaches it. A session that was idle in its transaction for too long is one
// that has not committed, and the server says so; lib/pq drops what it says. If an administrator has ended it, nobody can tell.
func testIdle(t *testing.T, c *cell) {
	lib, err := sql.Open("postgres", c.dsn)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, lib)
	pool, err := pgxpool.New(background, c.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const idle = "SET LOCAL idle_in_transaction_session_timeout = '20ms'"
	for how, end := range map[string]func(exec func(query string) error, pid int){
		"idle":       func(exec func(query string) error, pid int) { must(t, "idle", exec(idle)) },
		"terminated": func(_ func(query string) error, pid int) { c.exec(t, "SELECT pg_terminate_backend(?)", pid) },
	} {
		onSQL := func(db *sql.DB) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				return c.fence.WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) (err error) {
					var pid int
					must(t, "pid", tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid))
					end(func(query string) error { _, err := tx.ExecContext(ctx, query); return err }, pid)
					c.gone(t, pid)
					return nil
				})
			}
		}
		for driver, run := range map[string]func(ctx context.Context) error{
			"pgx stdlib": onSQL(c.db), "lib/pq": onSQL(lib),
			"pgx": func(ctx context.Context) error {
				return pgxfence.WithTx(ctx, c.fence, pool, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
					pid := int(tx.Conn().PgConn().PID())
					end(func(query string) error { _, err := tx.Exec(ctx, query); return err }, pid)
					c.gone(t, pid)
					return nil
				})
			},
		} {
			resource := "idle:" + how + driver
			err := run(sqlfence.Mark{Resource: resource, Token: 7}.In(within(t)))
			t.Logf("%s, %s: %v", how, driver, err)
			unknown := how == "terminated" || driver == "lib/pq"
			if err == nil || errors.Is(err, sqlfence.ErrCommitUnknown) != unknown {
				t.Errorf("%s, %s: got %v, want it unknown: %v", how, driver, err, unknown)
			}
			if got, err := c.fence.Current(within(t), c.db, resource); got != 0 || err != nil {
				t.Errorf("%s, %s: the database has token %d, %v, want nothing committed", how, driver, got, err)
			}
		}
	}
}

// pqDialer is a dialer for lib/pq.
type pqDialer struct{ dialer }

func (d pqDialer) Dial(network, addr string) (net.Conn, error) {
	return d.dialer(background, network, addr)
}

func (d pqDialer) DialTimeout(network, addr string, _ time.Duration) (net.Conn, error) {
	return d.dialer(background, network, addr)
}

// postgresCommits breaks those of lib/pq and of pgx by itself.
func postgresCommits(t *testing.T, c *cell) {
	t.Run("lib/pq broken commit", func(t *testing.T) {
		f := &faults{}
		connector, err := pq.NewConnector(c.dsn)
		if err != nil {
			t.Fatal(err)
		}
		connector.Dialer(pqDialer{f.dial})
		brokenCommits(t, c, f, "pq", c.transact(closing(t, sql.OpenDB(connector))))
	})
	t.Run("pgx broken commit", func(t *testing.T) {
		f := &faults{}
		cfg, err := pgxpool.ParseConfig(c.dsn)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.DialFunc = pgxDial(f.dial)
		pool, err := pgxpool.NewWithConfig(background, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		brokenCommits(t, c, f, "pgx", func(ctx context.Context, fn func()) error {
			return pgxfence.WithTx(ctx, c.fence, pool, pgx.TxOptions{}, func(context.Context, pgx.Tx) error { fn(); return nil })
		})
	})
}
