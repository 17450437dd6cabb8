package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
)

var background = context.Background()

var dialects = []sqlfence.Dialect{sqlfence.Postgres, sqlfence.MySQL, sqlfence.SQLite}

func newFence(t *testing.T, d sqlfence.Dialect, opts ...sqlfence.Option) *sqlfence.Fence {
	t.Helper()
	f, err := sqlfence.New(d, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func newDB(t *testing.T) (*fakeDB, *sql.DB) {
	t.Helper()
	fake, db := newFake()
	t.Cleanup(func() { _ = db.Close() })
	return fake, db
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func wantStale(t *testing.T, err error, want sqlfence.StaleError) {
	t.Helper()
	var stale *sqlfence.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, sqlfence.ErrStale) || !errors.Is(err, holdfast.ErrLost) || *stale != want {
		t.Errorf("got %v, want %v", err, &want)
	}
}

func TestGuardRefusesAnOlderTokenAndPassesAnEqualOne(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.String(), func(t *testing.T) {
			_, db := newDB(t)
			f := newFence(t, d)
			for _, token := range []int64{7, 7, 9} {
				tx := begin(t, db)
				if err := f.Guard(sqlfence.Mark{Resource: "r", Token: token}.In(background), tx); err != nil {
					t.Fatalf("token %d: %v", token, err)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			tx := begin(t, db)
			wantStale(t, f.Guard(sqlfence.Mark{Resource: "r", Token: 8}.In(background), tx), sqlfence.StaleError{Resource: "r", Token: 8, Current: 9})
			if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("commit after an ignored refusal: got %v, want %v", err, sql.ErrTxDone)
			}
		})
	}
}

func TestGuardOfAnotherTableIsRefused(t *testing.T) {
	_, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	tx := begin(t, db)
	defer tx.Rollback()
	err := f.Guard(sqlfence.Mark{Resource: "r", Token: 7}.In(background), lessTx{tx})
	if err == nil || errors.Is(err, sqlfence.ErrStale) {
		t.Errorf("got %v, want an error for a row that does not keep the token", err)
	}
}

// lessTx answers each guard with the number of another row.
type lessTx struct{ *sql.Tx }

func (t lessTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.Tx.QueryContext(ctx, query, "other", int64(1))
}

func TestAnyFailureOfGuardRollsBack(t *testing.T) {
	broken := errors.New("broken")
	cases := map[string]func(f *fakeDB) (context.Context, []sqlfence.Mark, error){
		"no token": func(*fakeDB) (context.Context, []sqlfence.Mark, error) { return background, nil, sqlfence.ErrNoToken },
		"bad mark": func(*fakeDB) (context.Context, []sqlfence.Mark, error) {
			return background, []sqlfence.Mark{{}}, holdfast.ErrInvalid
		},
		"ended": func(*fakeDB) (context.Context, []sqlfence.Mark, error) {
			ctx, cancel := context.WithCancel(sqlfence.Mark{Resource: "r", Token: 1}.In(background))
			cancel()
			return ctx, nil, context.Canceled
		},
		"database": func(f *fakeDB) (context.Context, []sqlfence.Mark, error) {
			f.fail["raise"] = []error{broken}
			return sqlfence.Mark{Resource: "r", Token: 1}.In(background), nil, broken
		},
		"stale": func(f *fakeDB) (context.Context, []sqlfence.Mark, error) {
			f.rows["r"] = 2
			return sqlfence.Mark{Resource: "r", Token: 1}.In(background), nil, sqlfence.ErrStale
		},
	}
	for name, arrange := range cases {
		for _, d := range dialects {
			t.Run(name+"/"+d.String(), func(t *testing.T) {
				fake, db := newDB(t)
				ctx, marks, want := arrange(fake)
				tx := begin(t, db)
				err := newFence(t, d).Guard(given(ctx, marks...), tx)
				if !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "sqlfence: ") {
					t.Errorf("got %v, want %v", err, want)
				}
				if fake.count("rollback") != 1 {
					t.Errorf("got %s, want one rollback", fake.ops())
				}
				if asked := fake.count("raise") > 0; asked && name != "database" && name != "stale" {
					t.Errorf("got %s, want the database not asked", fake.ops())
				}
			})
		}
	}
}

func TestGuardReportsAFailedRollback(t *testing.T) {
	fake, db := newDB(t)
	broken := errors.New("broken")
	fake.fail["rollback"] = []error{broken}
	err := newFence(t, sqlfence.SQLite).Guard(background, begin(t, db))
	if !errors.Is(err, sqlfence.ErrNoToken) || !errors.Is(err, broken) {
		t.Errorf("got %v, want both errors", err)
	}
}

func TestBadMarks(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	bad := map[string][]sqlfence.Mark{
		"no resource": {{Resource: "", Token: 1}},
		"too long":    {{Resource: strings.Repeat("k", 513), Token: 1}},
		"NUL":         {{Resource: "a\x00b", Token: 1}},
		"no UTF-8":    {{Resource: "a\xffb", Token: 1}},
		"token 0":     {{Resource: "r", Token: 0}},
		"token -1":    {{Resource: "r", Token: -1}},
		"token 2^53":  {{Resource: "r", Token: 1 << 53}},
		"token max":   {{Resource: "r", Token: math.MaxInt64}},
		"second":      {{Resource: "r", Token: 1}, {Resource: "", Token: 1}},
	}
	for name, marks := range bad {
		tx := begin(t, db)
		if err := f.Guard(given(background, marks...), tx); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: Guard: got %v, want %v", name, err, holdfast.ErrInvalid)
		}
		_ = tx.Rollback() // the fake has room for one
		if err := f.Advance(given(background, marks...), db); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: Advance: got %v, want %v", name, err, holdfast.ErrInvalid)
		}
	}
	good := []sqlfence.Mark{{Resource: strings.Repeat("k", 512), Token: 1<<53 - 1}, {Resource: "r", Token: 1}, {Resource: "r", Token: 1}}
	if err := f.Advance(given(background, good...), db); err != nil || fake.count("raise") != 2 {
		t.Errorf("got %v and %s, want each guarded once", err, fake.ops())
	}
}

func TestBadArguments(t *testing.T) {
	_, db := newDB(t)
	f := newFence(t, sqlfence.SQLite)
	ctx := sqlfence.Mark{Resource: "r", Token: 1}.In(background)
	nothing := func(context.Context, *sql.Tx) error { return nil }
	var none *sql.DB
	var noContext context.Context
	var zero sqlfence.Fence
	_, errDialect := sqlfence.New(0)
	_, errDialect2 := sqlfence.New(sqlfence.SQLite + 1)
	_, errOption := sqlfence.New(sqlfence.SQLite, nil)
	_, errHook := sqlfence.New(sqlfence.SQLite, sqlfence.WithRetries(10, nil))
	_, errRetries := sqlfence.New(sqlfence.SQLite, sqlfence.WithRetries(-1))
	_, errCurrent := f.Current(ctx, db, "")
	_, errCurrentDB := f.Current(ctx, none, "r")
	_, errZero := zero.Current(ctx, db, "r")
	for name, err := range map[string]error{
		"New(0)":             errDialect,
		"New(4)":             errDialect2,
		"nil option":         errOption,
		"nil hook":           errHook,
		"negative retries":   errRetries,
		"nil Tx":             f.Guard(ctx, nil),
		"nil *sql.Tx":        f.Guard(ctx, (*sql.Tx)(nil)),
		"nil ctx":            f.Guard(noContext, begin(t, db)),
		"zero Fence":         zero.Guard(ctx, begin(t, db)),
		"nil Fence":          (*sqlfence.Fence)(nil).Guard(ctx, begin(t, db)),
		"nil DB":             f.WithTx(ctx, nil, nil, nothing),
		"nil *sql.DB":        f.WithTx(ctx, none, nil, nothing),
		"nil fn":             f.WithTx(ctx, db, nil, nil),
		"read-only":          f.WithTx(ctx, db, &sql.TxOptions{ReadOnly: true}, nothing),
		"Current":            errCurrent,
		"Current without DB": errCurrentDB,
		"Current of zero":    errZero,
	} {
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.HasPrefix(err.Error(), "sqlfence: ") {
			t.Errorf("%s: got %v, want %v", name, err, holdfast.ErrInvalid)
		}
	}
}

func TestTableNames(t *testing.T) {
	for _, bad := range []string{"", ".", "a.", ".a", "a b", "a;b", `a"b`, "a`b", "1a", "ä", "a..b", "a-b", strings.Repeat("a", 64)} {
		if _, err := sqlfence.New(sqlfence.MySQL, sqlfence.WithTable(bad)); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%q: got %v, want %v", bad, err, holdfast.ErrInvalid)
		}
	}
	for d, want := range map[sqlfence.Dialect]string{
		sqlfence.Postgres: `"shop"."order"`, sqlfence.MySQL: "`shop`.`order`", sqlfence.SQLite: "`shop`.`order`",
	} {
		if got := newFence(t, d, sqlfence.WithTable("shop.order")).DDL(); !strings.Contains(got, "EXISTS "+want+" (") {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestPoolsAndConnectionsAreNoTransactions(t *testing.T) {
	tx := reflect.TypeFor[sqlfence.Tx]()
	for _, no := range []reflect.Type{reflect.TypeFor[*sql.DB](), reflect.TypeFor[*sql.Conn]()} {
		if no.Implements(tx) {
			t.Errorf("%v is taken for a transaction", no)
		}
	}
	if !reflect.TypeFor[*sql.Tx]().Implements(tx) {
		t.Error("*sql.Tx is not taken for a transaction")
	}
}

func TestSeveralAreGuardedInOrder(t *testing.T) {
	_, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	ctx := sqlfence.Mark{Resource: "a", Token: 3}.In(sqlfence.Mark{Resource: "c", Token: 2}.In(sqlfence.Mark{Resource: "b", Token: 1}.In(background)))
	tx := &recordTx{Tx: begin(t, db)}
	if err := f.Guard(ctx, tx); err != nil {
		t.Fatal(err)
	}
	if want := []any{"a", "b", "c"}; !slices.Equal(tx.first, want) {
		t.Errorf("got %v, want %v", tx.first, want)
	}
}

// recordTx notes the first argument of each query.
type recordTx struct {
	*sql.Tx
	first []any
}

func (t *recordTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.first = append(t.first, args[0])
	return t.Tx.QueryContext(ctx, query, args...)
}

func TestInnerTokenHidesOuter(t *testing.T) {
	fake, db := newDB(t)
	ctx := sqlfence.Mark{Resource: "r", Token: 7}.In(sqlfence.Mark{Resource: "r", Token: 5}.In(background))
	if err := newFence(t, sqlfence.MySQL).Advance(ctx, db); err != nil || fake.rows["r"] != 7 {
		t.Errorf("got %d, %v, want 7", fake.rows["r"], err)
	}
}

func TestGuardTakesLocksFromTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker, err := holdfast.New(servertest.NewBubble(t).Client(), holdfast.WithPrefix("shop:"))
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(background)
		fake, db := newDB(t)
		f := newFence(t, sqlfence.Postgres)
		acquire := func(ctx context.Context, key string) *holdfast.Lock {
			lock, err := locker.Acquire(ctx, key, holdfast.WithTTL(time.Second), holdfast.WithoutRenewal())
			if err != nil {
				t.Fatal(err)
			}
			return lock
		}
		outer := acquire(background, "outer")
		inner := acquire(outer.Context(background), "inner")
		ctx := inner.Context(outer.Context(background))
		if err := f.Advance(ctx, db); err != nil {
			t.Fatal(err)
		}
		if got, want := fake.rows["shop:outer"], outer.Token(); got != want {
			t.Errorf("outer: got %d, want %d", got, want)
		}
		if got, err := f.Current(ctx, db, inner.Key()); got != inner.Token() || err != nil {
			t.Errorf("inner: got %d, %v, want %d", got, err, inner.Token())
		}
		if err := f.Advance(sqlfence.Mark{Resource: inner.Key(), Token: inner.Token()}.In(ctx), db); err != nil {
			t.Errorf("the lock's own token: %v", err)
		}
		if err := f.Advance(sqlfence.Mark{Resource: inner.Key(), Token: 1}.In(ctx), db); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("another token: got %v, want %v", err, holdfast.ErrInvalid)
		}
		if err := inner.Release(background); err != nil {
			t.Fatal(err)
		}
		if err := f.Advance(ctx, db); !errors.Is(err, context.Canceled) || !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("after release: got %v, want %v and %v", err, context.Canceled, holdfast.ErrLost)
		}
		begun := fake.count("begin")
		time.Sleep(2 * time.Second)
		// The timer of a derived context may be late, and this one has none at all.
		lost := context.WithoutCancel(outer.Context(background))
		for name, err := range map[string]error{
			"Advance": f.Advance(lost, db),
			"WithTx":  f.WithTx(lost, db, nil, func(context.Context, *sql.Tx) error { t.Error("fn runs"); return nil }),
			"marks":   f.Advance(sqlfence.Mark{Resource: "r", Token: 1}.In(lost), db),
		} {
			if !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("%s with a lost lock: got %v, want %v", name, err, holdfast.ErrLost)
			}
		}
		if got := fake.count("begin"); got != begun {
			t.Errorf("%d transactions were begun with a lost lock", got-begun)
		}
		asked := fake.count("raise")
		if err := f.Guard(lost, begin(t, db)); !errors.Is(err, holdfast.ErrLost) || fake.count("raise") != asked {
			t.Errorf("Guard with a lost lock: got %v and %s, want %v before the database is asked", err, fake.ops(), holdfast.ErrLost)
		}
		_ = outer.Release(background)
		if err := f.Advance(context.WithoutCancel(ctx), db); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("after all releases: got %v, want %v", err, holdfast.ErrLost)
		}
	})
}

func TestCurrentOfAnUnknownResourceIsZero(t *testing.T) {
	_, db := newDB(t)
	if got, err := newFence(t, sqlfence.Postgres).Current(background, db, "r"); got != 0 || err != nil {
		t.Errorf("got %d, %v, want 0", got, err)
	}
}
