package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// Errors with the shapes of those of known drivers.
type (
	stateError  string                  // pgx, lib/pq
	mysqlError  struct{ Number uint16 } // go-sql-driver
	sqliteError struct{ code int }      // modernc.org
	mattnError  struct{ Code int }      // mattn
	ncruces     struct{ code ncrucesNo }
	ncrucesNo   uint8
	unsentError struct{} // pgx, "before anything was sent"
	pqError     struct { // lib/pq, in the server's language
		stateError
		Severity string
	}
	pgxError struct {
		stateError
		Severity, SeverityUnlocalized string
	}
)

func (e stateError) Error() string              { return string(e) }
func (e stateError) SQLState() string           { return string(e) }
func (e *mysqlError) Error() string             { return fmt.Sprint(e.Number) }
func (e *sqliteError) Error() string            { return fmt.Sprint(e.code) }
func (e *sqliteError) Code() int                { return e.code }
func (e mattnError) Error() string              { return fmt.Sprint(e.Code) }
func (e *ncruces) Error() string                { return fmt.Sprint(e.code) }
func (e *ncruces) Code() ncrucesNo              { return e.code }
func (unsentError) Error() string               { return "unsent" }
func (unsentError) SafeToRetry() bool           { return true }
func wrap(err error) error                      { return fmt.Errorf("shop: %w", errors.Join(errors.New("other"), err)) }
func write(_ context.Context, tx *sql.Tx) error { _, err := tx.Exec("UPDATE orders"); return err }

// given puts marks into a context.
func given(ctx context.Context, marks ...sqlfence.Mark) context.Context {
	for _, m := range marks {
		ctx = m.In(ctx)
	}
	return ctx
}

// parallel makes the marks parallel that ctx carries.
func parallel(ctx context.Context, f *sqlfence.Fence) context.Context {
	marks, _ := f.Marks(ctx)
	for i := range marks {
		marks[i].Parallel = true
	}
	return given(ctx, marks...)
}

func token(t int64) context.Context              { return sqlfence.Mark{Resource: "r", Token: t}.In(background) }
func bubble(t *testing.T, fn func(t *testing.T)) { synctest.Test(t, fn) }

func TestWithTxCommits(t *testing.T) {
	fake, db := newDB(t)
	if err := newFence(t, sqlfence.MySQL).WithTx(token(7), db, nil, write); err != nil {
		t.Fatal(err)
	}
	if got, want := fake.ops(), "begin raise read savepoint exec release commit"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if fake.rows["r"] != 7 {
		t.Errorf("got token %d, want 7", fake.rows["r"])
	}
}

// MySQL ends a transaction at a deadlock that fn takes no notice of, and COMMIT says nothing. The savepoint does.
func TestWithTxFindsOutThatTheTransactionEndedBefore(t *testing.T) {
	for _, tt := range []struct {
		at      string
		err     error
		unknown bool
		ops     string
	}{
		{"release", &mysqlError{1305}, true, "begin raise read savepoint exec release rollback"},
		{"release", wrap(&mysqlError{1305}), true, "begin raise read savepoint exec release rollback"},
		{"release", &mysqlError{1317}, false, "begin raise read savepoint exec release rollback"},
		{"savepoint", &mysqlError{1305}, false, "begin raise read savepoint rollback"},
	} {
		fake, db := newDB(t)
		fake.fail[tt.at] = []error{tt.err}
		err := newFence(t, sqlfence.MySQL).WithTx(token(7), db, nil, write)
		if !errors.Is(err, tt.err) || errors.Is(err, sqlfence.ErrCommitUnknown) != tt.unknown || fake.ops() != tt.ops {
			t.Errorf("%s: got %v and %s, want %v, unknown: %t, and %s", tt.at, err, fake.ops(), tt.err, tt.unknown, tt.ops)
		}
	}
}

// It does where fn returns an error too: what ran before a DDL statement must not run twice.
func TestWithTxDoesNotRepeatATransactionThatHadEnded(t *testing.T) {
	mine := errors.New("mine")
	const once = "begin raise read savepoint exec release rollback"
	for _, tt := range []struct {
		name        string
		fn, release error
		unknown     bool
		ops         string
	}{
		{"DDL, a lock timeout", &mysqlError{1205}, &mysqlError{1305}, true, once},
		{"DDL, an error", mine, wrap(&mysqlError{1305}), true, once},
		{"an error", mine, nil, false, once},
		{"the connection breaks", mine, io.ErrUnexpectedEOF, false, once},
		{"a lock timeout", &mysqlError{1205}, nil, false, once},
		// MySQL has rolled these back itself, and the savepoint is gone for that.
		{"a deadlock", &mysqlError{1213}, nil, false, "begin raise read savepoint exec rollback begin raise read savepoint exec release commit"},
		{"a snapshot that is too old", &mysqlError{1020}, nil, false, "begin raise read savepoint exec rollback begin raise read savepoint exec release commit"},
	} {
		bubble(t, func(t *testing.T) {
			fake, db := newDB(t)
			fake.fail["exec"] = []error{tt.fn}
			if tt.release != nil {
				fake.fail["release"] = []error{tt.release}
			}
			err := newFence(t, sqlfence.MySQL).WithTx(token(7), db, nil, write)
			if errors.Is(err, sqlfence.ErrCommitUnknown) != tt.unknown || fake.ops() != tt.ops {
				t.Errorf("%s: got %v and %s, want it unknown: %t, and %s", tt.name, err, fake.ops(), tt.unknown, tt.ops)
			}
			again := tt.ops != once
			if again != (err == nil) || !again && !errors.Is(err, tt.fn) || !again && !tt.unknown && err != tt.fn {
				t.Errorf("%s: got %v, want what fn returned: %t", tt.name, err, !again)
			}
			if tt.unknown && !errors.Is(err, tt.release) {
				t.Errorf("%s: got %v, want %v in it", tt.name, err, tt.release)
			}
		})
	}
}

func TestWithTxReturnsWhatFnReturns(t *testing.T) {
	fake, db := newDB(t)
	mine := errors.New("mine")
	if err := newFence(t, sqlfence.SQLite).WithTx(token(7), db, nil, func(context.Context, *sql.Tx) error { return mine }); err != mine {
		t.Errorf("got %v, want %v", err, mine)
	}
	if got, want := fake.ops(), "begin raise rollback"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if fake.rows["r"] != 0 {
		t.Errorf("got token %d after a rollback, want 0", fake.rows["r"])
	}
}

func TestWithTxRollsBackOnPanic(t *testing.T) {
	fake, db := newDB(t)
	func() {
		defer func() {
			if got := recover(); got != "mine" {
				t.Errorf("recovered %v", got)
			}
		}()
		_ = newFence(t, sqlfence.SQLite).WithTx(token(7), db, nil, func(context.Context, *sql.Tx) error { panic("mine") })
	}()
	if got, want := fake.ops(), "begin raise rollback"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestWithTxNeverRepeatsAStaleOne(t *testing.T) {
	fake, db := newDB(t)
	fake.rows["r"] = 8
	err := newFence(t, sqlfence.SQLite).WithTx(token(7), db, nil, func(context.Context, *sql.Tx) error { t.Error("fn runs"); return nil })
	wantStale(t, err, sqlfence.StaleError{Resource: "r", Token: 7, Current: 8})
	if got, want := fake.ops(), "begin raise rollback"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Nor when the error looks transient as well.
	always := newFence(t, sqlfence.SQLite, sqlfence.WithRetries(10, func(error) bool { return true }))
	if err := always.WithTx(token(7), db, nil, write); !errors.Is(err, sqlfence.ErrStale) || fake.count("begin") != 2 {
		t.Errorf("got %v and %s", err, fake.ops())
	}
}

func TestWithTxRepeats(t *testing.T) {
	unknown := errors.New("unknown")
	tests := []struct {
		dialect sqlfence.Dialect
		err     error
		again   bool
	}{
		{sqlfence.Postgres, stateError("40001"), true},
		{sqlfence.Postgres, stateError("40P01"), true},
		{sqlfence.Postgres, wrap(stateError("40P01")), true},
		{sqlfence.Postgres, stateError("55P03"), false}, // a bound that was set, which a repeat would multiply
		{sqlfence.Postgres, stateError("23505"), false},
		{sqlfence.Postgres, &mysqlError{1213}, false},
		{sqlfence.MySQL, &mysqlError{1205}, false},
		{sqlfence.MySQL, &mysqlError{1213}, true},
		{sqlfence.MySQL, &mysqlError{1020}, true},
		{sqlfence.MySQL, wrap(&mysqlError{1213}), true},
		{sqlfence.MySQL, wrap(&mysqlError{3572}), false},
		{sqlfence.MySQL, &mysqlError{1062}, false},
		{sqlfence.SQLite, &sqliteError{5}, true},
		{sqlfence.SQLite, &sqliteError{5 | 2<<8}, true}, // BUSY_SNAPSHOT
		{sqlfence.SQLite, wrap(&sqliteError{6}), true},
		{sqlfence.SQLite, mattnError{5}, true},
		{sqlfence.SQLite, &ncruces{5}, true},
		{sqlfence.SQLite, &sqliteError{19}, false},
		{sqlfence.SQLite, stateError("40001"), false},
		{sqlfence.SQLite, driver.ErrBadConn, true},
		{sqlfence.Postgres, unsentError{}, true},
		{sqlfence.SQLite, unknown, false},
	}
	for _, tt := range tests {
		for _, at := range []string{"begin", "raise", "early", "late", "exec", "commit"} {
			t.Run(fmt.Sprintf("%v/%T %v/%s", tt.dialect, tt.err, tt.err, at), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					if at == "early" && tt.dialect == sqlfence.MySQL {
						t.Skip("the guard has no rows")
					}
					dead := tt.err == driver.ErrBadConn || tt.err == unsentError{}
					if dead && at == "commit" || tt.err == driver.ErrBadConn && at == "begin" {
						t.Skip("unknown at commit, and database/sql repeats a BEGIN by itself")
					}
					fake, db := newDB(t)
					fake.fail[at] = []error{tt.err, tt.err}
					began := time.Now()
					err := newFence(t, tt.dialect).WithTx(token(7), db, nil, write)
					if tt.again {
						if err != nil || fake.count("begin") != 3 || fake.count("commit") > 3 {
							t.Errorf("got %v and %s, want success at the third attempt", err, fake.ops())
						}
						least, most := 3*time.Millisecond, 6*time.Millisecond // 1 to 2 ms and then 2 to 4 ms
						if s := tt.err.Error(); (s == "40001" || s == "1020") && at != "exec" && at != "commit" {
							least, most = 2*time.Millisecond, 4*time.Millisecond // one that met another at the guard need not part further
						}
						if d := time.Since(began); d < least || d > most {
							t.Errorf("paused %v, want %v to %v", d, least, most)
						}
						return
					}
					if !errors.Is(err, tt.err) || fake.count("begin") != 1 {
						t.Errorf("got %v and %s, want %v and one attempt", err, fake.ops(), tt.err)
					}
				})
			})
		}
	}
}

// What a transaction meets at the guard is no attempt that counts: with many in line each of them would fail.
func TestCollisionsAtTheGuardAreNotCounted(t *testing.T) {
	for d, err := range map[sqlfence.Dialect]error{sqlfence.Postgres: stateError("40001"), sqlfence.MySQL: &mysqlError{1020}} {
		bubble(t, func(t *testing.T) {
			fake, db := newDB(t)
			fake.fail["raise"] = slices.Repeat([]error{err}, 100)
			if got := newFence(t, d, sqlfence.WithRetries(1)).WithTx(token(7), db, nil, write); got != nil || fake.count("begin") != 101 {
				t.Errorf("got %v after %d attempts", got, fake.count("begin"))
			}
			fake.fail["raise"] = []error{err}
			if got := newFence(t, d, sqlfence.WithRetries(0)).WithTx(token(7), db, nil, write); !errors.Is(got, err) {
				t.Errorf("without retries: got %v, want %v", got, err)
			}
			fake.fail["exec"] = slices.Repeat([]error{err}, 100)
			if got := newFence(t, d).WithTx(token(7), db, nil, write); !errors.Is(got, err) {
				t.Errorf("in the function: got %v, want %v", got, err)
			}
			fake.fail = map[string][]error{"raise": slices.Repeat([]error{err}, 2000)}
			if got := newFence(t, d).WithTx(token(7), db, nil, write); !errors.Is(got, err) {
				t.Errorf("for ever: got %v, want %v", got, err)
			}
		})
	}
}

func TestWithTxGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fake, db := newDB(t)
		busy := &sqliteError{5}
		for range 100 {
			fake.fail["exec"] = append(fake.fail["exec"], busy)
		}
		if err := newFence(t, sqlfence.SQLite).WithTx(token(7), db, nil, write); err != error(busy) || fake.count("begin") != 11 {
			t.Errorf("by default: got %v after %d attempts, want %v after 11", err, fake.count("begin"), busy)
		}
		fake.log = nil
		if err := newFence(t, sqlfence.SQLite, sqlfence.WithRetries(0)).WithTx(token(7), db, nil, write); err != error(busy) || fake.count("begin") != 1 {
			t.Errorf("without retries: got %v after %d attempts, want %v after 1", err, fake.count("begin"), busy)
		}
		began := time.Now()
		_ = newFence(t, sqlfence.SQLite, sqlfence.WithRetries(12)).WithTx(token(7), db, nil, write)
		if d := time.Since(began); d < time.Second || d > 3*time.Second {
			t.Errorf("12 retries took %v, want the pauses to stop growing at 500 ms", d)
		}
		fake.log = nil
		ctx, cancel := context.WithTimeout(token(7), 20*time.Millisecond)
		defer cancel()
		err := newFence(t, sqlfence.SQLite).WithTx(ctx, db, nil, write)
		if !errors.Is(err, busy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: got %v, want both reasons", err)
		}
	})
}

// The bound that a database has for a wait is one for the call, not for each of its attempts.
func TestALockTimeoutIsNotMultiplied(t *testing.T) {
	for _, tt := range []struct {
		dialect  sqlfence.Dialect
		err      error
		wait     time.Duration
		attempts int
	}{
		{sqlfence.Postgres, stateError("55P03"), 5 * time.Second, 1},
		{sqlfence.MySQL, &mysqlError{1205}, 50 * time.Second, 1},
		{sqlfence.SQLite, &sqliteError{5}, 5 * time.Second, 1},
		{sqlfence.SQLite, wrap(mattnError{5}), time.Second, 1},
		{sqlfence.SQLite, &sqliteError{5}, 600 * time.Millisecond, 2}, // which may have no busy_timeout
		{sqlfence.SQLite, &sqliteError{6}, 5 * time.Second, 11},       // LOCKED, which no busy_timeout bounds
	} {
		for _, at := range []string{"begin", "raise", "exec", "commit"} {
			bubble(t, func(t *testing.T) {
				fake, db := newDB(t)
				fake.fail[at] = slices.Repeat([]error{tt.err}, 20)
				fake.wait = tt.wait
				if err := newFence(t, tt.dialect).WithTx(token(7), db, nil, write); !errors.Is(err, tt.err) || fake.count("begin") != tt.attempts {
					t.Errorf("%v at %s: got %v after %d attempts, want %d", tt.err, at, err, fake.count("begin"), tt.attempts)
				}
				fake.fail[at] = []error{tt.err}
				all := sqlfence.WithRetries(10, func(err error) bool { return errors.Is(err, tt.err) })
				if err := newFence(t, tt.dialect, all).WithTx(token(7), db, nil, write); err != nil {
					t.Errorf("%v at %s: the user's hook: %v", tt.err, at, err)
				}
			})
		}
	}
}

func TestHookOfTheUser(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fake, db := newDB(t)
		mine := errors.New("mine")
		fake.fail["exec"] = []error{mine}
		f := newFence(t, sqlfence.SQLite, sqlfence.WithRetries(10, func(err error) bool { return errors.Is(err, mine) }))
		if err := f.WithTx(token(7), db, nil, write); err != nil || fake.count("begin") != 2 {
			t.Errorf("got %v and %s, want success at the second attempt", err, fake.ops())
		}
	})
}

func TestCommitErrors(t *testing.T) {
	tests := []struct {
		dialect sqlfence.Dialect
		err     error
		unknown bool
	}{
		{sqlfence.Postgres, errors.New("unexpected EOF"), true},
		{sqlfence.Postgres, driver.ErrBadConn, true},
		{sqlfence.Postgres, context.Canceled, true},
		{sqlfence.Postgres, stateError("57P01"), true},
		{sqlfence.Postgres, stateError("40003"), true}, // statement completion unknown
		{sqlfence.Postgres, stateError("23503"), false},
		{sqlfence.Postgres, stateError("25P02"), false},
		{sqlfence.Postgres, &pgxError{"25P03", "FATAL", "FATAL"}, false}, // idle in the transaction for too long
		{sqlfence.Postgres, &pqError{"25P03", "FATAL"}, false},
		{sqlfence.Postgres, &pqError{"25P03", "FATALE"}, false},
		{sqlfence.Postgres, &pgxError{"25P04", "FATAL", "FATAL"}, true}, // transaction_timeout, which may come during COMMIT
		{sqlfence.Postgres, stateError("P0001"), false},                 // what a deferred trigger raises
		{sqlfence.Postgres, stateError("08P01"), true},
		{sqlfence.Postgres, stateError("53100"), true}, // disk full: ERROR before the commit is recorded, PANIC at that
		{sqlfence.Postgres, &pqError{"53100", "ERROR"}, false},
		{sqlfence.Postgres, &pqError{"53100", "PANIC"}, true},
		{sqlfence.Postgres, &pqError{"53100", "PANIK"}, true},
		{sqlfence.Postgres, &pqError{"P0001", "FEHLER"}, false},
		{sqlfence.Postgres, &pqError{"P0001", "FATAL"}, true},
		{sqlfence.Postgres, &pqError{"", "ERROR"}, true},
		{sqlfence.Postgres, &pgxError{"53100", "FEHLER", "ERROR"}, false},
		{sqlfence.Postgres, wrap(&pgxError{"P0001", "ERROR", "ERROR"}), false},
		{sqlfence.Postgres, &pgxError{"57P01", "FATAL", "FATAL"}, true},
		{sqlfence.Postgres, &pgxError{"40003", "ERROR", "ERROR"}, true},
		{sqlfence.Postgres, &pgxError{"08006", "ERROR", "ERROR"}, true},
		{sqlfence.Postgres, unsentError{}, true}, // not to be believed
		{sqlfence.Postgres, sql.ErrTxDone, false},
		{sqlfence.Postgres, wrap(errors.New("commit unexpectedly resulted in rollback")), false},
		{sqlfence.Postgres, errors.New("pq: Could not complete operation in a failed transaction"), false},
		{sqlfence.Postgres, errors.New("pq: could not complete operation in a failed transaction"), false}, // v1.12
		{sqlfence.Postgres, errors.New("tx is closed"), false},
		{sqlfence.MySQL, errors.New("invalid connection"), true},
		{sqlfence.MySQL, &mysqlError{1317}, true},
		{sqlfence.MySQL, &mysqlError{1205}, false},
		{sqlfence.Postgres, stateError("55P03"), false},
		{sqlfence.SQLite, &sqliteError{10}, true}, // I/O
		{sqlfence.SQLite, &sqliteError{787}, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%v/%v", tt.dialect, tt.err), func(t *testing.T) {
			fake, db := newDB(t)
			fake.fail["commit"] = []error{tt.err}
			err := newFence(t, tt.dialect).WithTx(token(7), db, nil, write)
			if !errors.Is(err, tt.err) || errors.Is(err, sqlfence.ErrCommitUnknown) != tt.unknown || !strings.HasPrefix(err.Error(), "sqlfence: ") {
				t.Errorf("got %v, want unknown: %v", err, tt.unknown)
			}
			if fake.count("begin") != 1 {
				t.Errorf("got %s, want one attempt", fake.ops())
			}
		})
	}
}

func TestAdvanceRepeatsAnUnknownCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fake, db := newDB(t)
		fake.fail["commit"] = []error{errors.New("unexpected EOF"), driver.ErrBadConn}
		if err := newFence(t, sqlfence.Postgres).Advance(token(7), db); err != nil || fake.rows["r"] != 7 || fake.count("commit") != 3 {
			t.Errorf("got %v and %s, want success at the third attempt", err, fake.ops())
		}
	})
}

func TestWithTxDoesNotCommitUnderAContextThatHasEnded(t *testing.T) {
	fake, db := newDB(t)
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(token(7))
	// A driver begun with a context of its own: database/sql itself would refuse to commit.
	err := newFence(t, sqlfence.Postgres).WithTx(ctx, detached{db}, nil, func(_ context.Context, tx *sql.Tx) error { cancel(why); return nil })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, sqlfence.ErrCommitUnknown) {
		t.Errorf("got %v, want the context's error and its cause", err)
	}
	if got, want := fake.ops(), "begin raise rollback"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

type detached struct{ *sql.DB }

func (d detached) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	return d.DB.BeginTx(context.WithoutCancel(ctx), opts)
}

func TestWithTxReportsAnEndedTransaction(t *testing.T) {
	_, db := newDB(t)
	err := newFence(t, sqlfence.Postgres).WithTx(token(7), db, nil, func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() })
	if !errors.Is(err, sql.ErrTxDone) || errors.Is(err, sqlfence.ErrCommitUnknown) {
		t.Errorf("got %v, want %v", err, sql.ErrTxDone)
	}
}
