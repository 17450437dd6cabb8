package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// Errors that no database has sent, whatever they look like.
type (
	rpcCode   uint32
	rpcError  struct{ code rpcCode }      // connectrpc.com/connect, where 5 is "not found"
	wordError struct{}                    // a Code that is no number
	argError  struct{}                    // a Code that wants something
	embedded  struct{ *mysqlError }       // of which there may be none
	nilState  struct{ state *stateError } // its method does not stand a nil pointer
)

func (e *rpcError) Error() string    { return fmt.Sprint("rpc ", e.code) }
func (e *rpcError) Code() rpcCode    { return e.code }
func (wordError) Error() string      { return "word" }
func (wordError) Code() string       { return "5" }
func (argError) Error() string       { return "arg" }
func (argError) Code(int) int        { return 5 }
func (embedded) Error() string       { return "embedded" }
func (e *nilState) Error() string    { return "state" }
func (e *nilState) SQLState() string { return string(*e.state) }

// What fn returns may be anything: if no database has sent it, it is not repeated, and it does no harm.
func TestWithTxStandsErrorsOfAllShapes(t *testing.T) {
	for _, err := range []error{
		&rpcError{5}, &rpcError{6}, wordError{}, argError{}, embedded{},
		(*nilState)(nil), (*mysqlError)(nil), (*sqliteError)(nil), (*rpcError)(nil), (*sqlfence.StaleError)(nil),
	} {
		for _, d := range dialects {
			for what, err := range map[string]error{"": err, "joined": errors.Join(errors.New("other"), err)} {
				t.Run(fmt.Sprintf("%v/%T/%s", d, err, what), func(t *testing.T) {
					fake, db := newDB(t)
					got := newFence(t, d).WithTx(token(7), db, nil, func(context.Context, *sql.Tx) error { return err })
					if got != err || fake.count("begin") != 1 || fake.count("rollback") != 1 {
						t.Errorf("got %v and %s, want it as it is after one attempt", got == err, fake.ops())
					}
				})
			}
		}
	}
}

func TestWithTxRollsBackWhenFnEndsItsGoroutine(t *testing.T) {
	fake, db := newDB(t)
	fence, done := newFence(t, sqlfence.SQLite), make(chan struct{})
	go func() {
		defer close(done)
		_ = fence.WithTx(token(7), db, nil, func(context.Context, *sql.Tx) error { runtime.Goexit(); return nil })
	}()
	<-done
	if got, want := fake.ops(), "begin raise rollback"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// wordyTx says something of its own when the context ends its wait, as lib/pq does and pgx at times.
type wordyTx struct {
	*sql.Tx
	wait func()
	err  error
}

func (t wordyTx) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	t.wait()
	return nil, t.err
}

func (t wordyTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	_, err := t.QueryContext(ctx, query, args...)
	return nil, err
}

// wordyDB is the same where all connections are in use.
type wordyDB struct{ wordyTx }

func (d wordyDB) BeginTx(ctx context.Context, _ *sql.TxOptions) (*sql.Tx, error) {
	_, err := d.QueryContext(ctx, "")
	return nil, err
}

func TestWhatEndedAWaitIsSaid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		locker, err := holdfast.New(servertest.NewBubble(t).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(background)
		_, db := newDB(t)
		f := newFence(t, sqlfence.Postgres)
		canceled := stateError("57014")
		for name, run := range map[string]func(context.Context, wordyTx) error{
			"Guard": func(ctx context.Context, tx wordyTx) error { return f.Guard(ctx, tx) },
			"WithTx": func(ctx context.Context, tx wordyTx) error {
				_ = tx.Rollback()
				return f.WithTx(ctx, wordyDB{tx}, nil, write)
			},
		} {
			lock, err := locker.Acquire(background, "order:42", holdfast.WithTTL(time.Second), holdfast.WithoutRenewal())
			if err != nil {
				t.Fatal(err)
			}
			limited, cancel := context.WithTimeout(token(7), time.Millisecond)
			for _, tt := range []struct {
				ctx  context.Context
				want error
			}{{limited, context.DeadlineExceeded}, {lock.Context(background), holdfast.ErrLost}} {
				err := run(tt.ctx, wordyTx{begin(t, db), func() { <-tt.ctx.Done() }, canceled})
				if !errors.Is(err, tt.want) || !errors.Is(err, canceled) {
					t.Errorf("%s: got %v, want %v and what the database said", name, err, tt.want)
				}
			}
			cancel()
			_ = lock.Release(background)
		}
	})
}
