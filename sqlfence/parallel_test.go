package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

func did(t *testing.T, fake *fakeDB, what, want string) {
	t.Helper()
	if got := fake.ops(); got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
	fake.log = nil
}

// The first transaction raises the row in one of its own; those after it share the row and raise nothing.
func TestParallel(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	parallel := func(n int64) context.Context { return sqlfence.WithParallel(token(n)) }
	for _, n := range []int64{7, 8} {
		if err := f.WithTx(parallel(n), db, nil, write); err != nil {
			t.Fatal(err)
		}
		did(t, fake, "first", "begin share rollback begin share rollback begin raise commit begin share exec commit")
		if err := f.WithTx(parallel(n), db, nil, write); err != nil {
			t.Fatal(err)
		}
		did(t, fake, "then", "begin share exec commit")
	}
	wantStale(t, f.WithTx(parallel(7), db, nil, write), sqlfence.StaleError{Resource: "r", Token: 7, Current: 8})
	did(t, fake, "stale", "begin share rollback")
	// Others do not have to wait for a raise: the row is looked at first.
	if err := f.WithTx(token(8), db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "alone", "begin raise exec commit")
	// Advance is never parallel, and Guard, which cannot begin again, does not let one through that it cannot hold back.
	tx := begin(t, db)
	if err := f.Guard(parallel(9), tx); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "Advance") {
		t.Errorf("got %v", err)
	}
	did(t, fake, "behind", "begin share rollback")
	if err := f.Advance(parallel(9), db); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "advance", "begin raise commit")
	tx = begin(t, db)
	if err := f.Guard(parallel(9), tx); err != nil {
		t.Error(err)
	}
	_ = tx.Rollback()
	fake.log = nil
	// SQLite has one writer, and no lock to share.
	if err := newFence(t, sqlfence.SQLite).WithTx(parallel(10), db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "SQLite", "begin raise exec commit")
	// A pgx that says in its own words that there is no row.
	if err := sqlfence.WithPgx(parallel(11), f, fake.beginPgx, func(fakePgx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "pgx", "begin share rollback begin share rollback begin raise commit begin share commit")
	delete(fake.rows, "r")
	if err := sqlfence.WithPgx(parallel(11), f, fake.beginPgx, func(fakePgx) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// It is for what the context carries then, and what is given twice is not parallel.
func TestParallelIsForWhatTheContextCarries(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	fake.rows["r"] = 7
	ctx := sqlfence.WithToken(sqlfence.WithParallel(token(7)), "order", 3)
	if err := f.WithTx(ctx, db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "order and r", "begin raise share exec commit")
	// A later token of the same resource is another holder's, as a lock that was acquired anew.
	later, err := f.Marks(sqlfence.WithToken(sqlfence.WithParallel(token(7)), "r", 8))
	if want := []sqlfence.Mark{{Resource: "r", Token: 8}}; err != nil || !slices.Equal(later, want) {
		t.Errorf("a later token: got %v, %v, want %v", later, err, want)
	}
	if err := f.WithTx(sqlfence.WithParallel(background), db, nil, write); !errors.Is(err, sqlfence.ErrNoToken) {
		t.Errorf("of nothing: got %v", err)
	}
	m := sqlfence.Mark{Resource: "r", Token: 7, Parallel: true}
	alone := m
	alone.Parallel = false
	for what, marks := range map[string][]sqlfence.Mark{"begin share exec commit": {m, m}, "begin raise exec commit": {m, alone}} {
		for range 2 {
			slices.Reverse(marks)
			if err := f.WithTx(background, db, nil, write, marks...); err != nil {
				t.Fatal(err)
			}
			did(t, fake, "twice", what)
		}
	}
}

// A row that is not behind is not raised: to raise it is to wait for all that share it.
func TestOneRowAdvances(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	fake.rows["r"] = 7
	ctx := sqlfence.WithParallel(sqlfence.WithToken(token(7), "order", 3))
	const advance = "begin share rollback begin raise commit "
	if err := f.WithTx(ctx, db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "a new one", "begin share rollback "+advance+"begin share share exec commit")
	ctx = sqlfence.WithParallel(sqlfence.WithToken(token(8), "order", 4))
	if err := f.WithTx(ctx, db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "both", "begin share rollback "+advance+"begin share share rollback "+
		"begin share share rollback begin raise commit begin share share exec commit")
}

// A row that was pruned between the transaction that raised it and the one that shares it is raised again.
func TestAdvanceIsRepeatedWhereItsRowWent(t *testing.T) {
	for _, resources := range [][]string{{"r"}, {"order", "r"}} {
		bubble(t, func(t *testing.T) {
			fake, db := newDB(t)
			f := newFence(t, sqlfence.Postgres)
			ctx := background
			for _, r := range resources {
				ctx = sqlfence.WithToken(ctx, r, 7)
			}
			ctx = sqlfence.WithParallel(ctx)
			begins := 0
			begin := func(ctx context.Context) (*sql.Tx, sqlfence.Tx, error) {
				if begins++; begins == 4 { // behind, behind in its turn, advance
					clear(fake.rows)
				}
				tx, err := db.BeginTx(ctx, nil)
				return tx, tx, err
			}
			if err := sqlfence.With(ctx, f, begin, write); err != nil {
				t.Errorf("%v: %v", resources, err)
			}
			if fake.count("raise") != 1+len(resources) || fake.count("exec") != 1 {
				t.Errorf("%v: got %s", resources, fake.ops())
			}
		})
	}
	// BeginTx repeats nothing, and does not send the caller to Advance, which was called.
	fake, db := newDB(t)
	pruning := beginning{db, func() {
		if fake.count("begin") == 3 {
			clear(fake.rows)
		}
	}}
	_, err := newFence(t, sqlfence.Postgres).BeginTx(sqlfence.WithParallel(token(7)), pruning, nil)
	if err == nil || errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "begin again") {
		t.Errorf("BeginTx: got %v", err)
	}
	if len(fake.sem) != 0 {
		t.Error("BeginTx leaves a transaction open")
	}
}

// beginning is a pool that does something before it begins a transaction.
type beginning struct {
	*sql.DB
	before func()
}

func (b beginning) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	b.before()
	return b.DB.BeginTx(ctx, opts)
}

// Calls that find the row behind raise it once, and one that has to wait for its turn goes when its context ends.
func TestOneCallAdvances(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fake, db := newDB(t)
		f := newFence(t, sqlfence.Postgres)
		ctx := sqlfence.WithParallel(token(7))
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if err := f.WithTx(ctx, db, nil, write); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if fake.count("raise") != 1 || fake.count("commit") != 6 {
			t.Errorf("got %s", fake.ops())
		}
		fake.sem <- struct{}{} // somebody has the database
		first, last := make(chan error), make(chan error)
		short, cancel := context.WithCancel(sqlfence.WithParallel(token(8)))
		hook := make(chan struct{})
		go func() {
			first <- sqlfence.With(sqlfence.WithParallel(token(8)), f, func(ctx context.Context) (*sql.Tx, sqlfence.Tx, error) {
				if fake.count("begin") > 20 {
					<-hook // in its turn
				}
				tx, err := db.BeginTx(ctx, nil)
				return tx, tx, err
			}, write)
		}()
		synctest.Wait()
		fake.log = slices.Repeat([]string{"begin"}, 21)
		<-fake.sem
		synctest.Wait()
		go func() { last <- f.WithTx(short, db, nil, write) }()
		synctest.Wait()
		cancel()
		if err := <-last; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		close(hook)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

func TestMarksOfWithTx(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	ctx := sqlfence.WithToken(token(7), "order", 3)
	only := sqlfence.Mark{Resource: "order", Token: 3}
	beginTx := func(ctx context.Context) (*sql.Tx, sqlfence.Tx, error) {
		tx, err := db.BeginTx(ctx, nil)
		return tx, tx, err
	}
	for name, run := range map[string]func(marks ...sqlfence.Mark) error{
		"WithTx": func(m ...sqlfence.Mark) error { return f.WithTx(ctx, db, nil, write, m...) },
		"With":   func(m ...sqlfence.Mark) error { return sqlfence.With(ctx, f, beginTx, write, m...) },
		"WithPgx": func(m ...sqlfence.Mark) error {
			return sqlfence.WithPgx(ctx, f, fake.beginPgx, func(fakePgx) error { return nil }, m...)
		},
		"BeginTx": func(m ...sqlfence.Mark) error {
			tx, err := f.BeginTx(ctx, db, nil, m...)
			if err != nil {
				return err
			}
			return tx.Commit()
		},
	} {
		fake.rows, fake.log = map[string]int64{}, nil
		if err := run(only); err != nil || fake.count("raise") != 1 || fake.rows["order"] != 3 {
			t.Errorf("%s with a mark: got %v and %s", name, err, fake.ops())
		}
		fake.log = nil
		if err := run(); err != nil || fake.count("raise") != 2 || fake.rows["r"] != 7 {
			t.Errorf("%s: got %v and %s", name, err, fake.ops())
		}
		fake.rows["order"] = 9
		if err := run(only); !errors.Is(err, sqlfence.ErrStale) {
			t.Errorf("%s: got %v, want stale", name, err)
		}
		if len(fake.sem) != 0 {
			t.Fatalf("%s leaves a transaction open", name)
		}
	}
}

func TestWith(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.MySQL)
	// A library's transaction is another type than what it stands on.
	type wrapped struct{ *sql.Tx }
	with := func(fn func(wrapped) error) error {
		return sqlfence.With(token(7), f, func(ctx context.Context) (wrapped, sqlfence.Tx, error) {
			tx, err := db.BeginTx(ctx, nil)
			return wrapped{tx}, tx, err
		}, fn)
	}
	fake.fail["exec"] = []error{&mysqlError{1213}}
	if err := with(func(tx wrapped) error { return write(tx.Tx) }); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "repeated", "begin raise read savepoint exec rollback begin raise read savepoint exec release commit")
	fake.fail["commit"] = []error{errors.New("unexpected EOF")}
	if err := with(func(wrapped) error { return nil }); !errors.Is(err, sqlfence.ErrCommitUnknown) {
		t.Errorf("got %v, want %v", err, sqlfence.ErrCommitUnknown)
	}
	fake.log = nil
	func() {
		defer func() { _ = recover() }()
		_ = with(func(wrapped) error { panic("mine") })
	}()
	did(t, fake, "panic", "begin raise read savepoint rollback")
	nothing := func(*sql.Tx) error { return nil }
	mine := errors.New("mine")
	for want, begin := range map[error]func(context.Context) (*sql.Tx, sqlfence.Tx, error){
		holdfast.ErrInvalid: func(context.Context) (*sql.Tx, sqlfence.Tx, error) { return nil, (*sql.Tx)(nil), nil },
		mine:                func(context.Context) (*sql.Tx, sqlfence.Tx, error) { return nil, nil, mine },
	} {
		if err := sqlfence.With(token(7), f, begin, nothing); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if err := sqlfence.With(token(7), f, nil, nothing); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("got %v, want %v", err, holdfast.ErrInvalid)
	}
}

// A row's token is that of the context, by the name of the lock or where there is no other.
func TestExecRowTakesTheTokenFromTheContext(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	one, two := token(7), sqlfence.WithToken(token(7), "order", 9)
	row := func(resource string) sqlfence.Row {
		return sqlfence.Row{Table: "orders", Key: "id", ID: int64(42), Fence: "fence", Resource: resource}
	}
	for _, tt := range []struct {
		name string
		ctx  context.Context
		row  sqlfence.Row
		has  int64
		set  int64
		want error
	}{
		{"the only one", one, row(""), 7, 7, nil},
		{"by name", two, row("order"), 7, 9, nil},
		{"the other name", two, row("r"), 7, 7, nil},
		{"stale", two, row("r"), 8, 7, sqlfence.ErrStale},
		{"one of two", two, row(""), 7, 7, holdfast.ErrInvalid},
		{"none", background, row(""), 7, 7, sqlfence.ErrNoToken},
		{"none of that name", one, row("order"), 7, 7, sqlfence.ErrNoToken},
		{"too large", sqlfence.WithToken(background, "r", 1<<53), row(""), 7, 7, holdfast.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake.rows["orders:42"] = tt.has
			const update = "UPDATE orders SET fence"
			tx := begin(t, db)
			if err := f.ExecRow(tt.ctx, tx, tt.row, update, tt.set, int64(42)); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			_ = tx.Rollback()
			p, err := fake.beginPgx(background)
			if err != nil {
				t.Fatal(err)
			}
			if err := sqlfence.ExecRowPgx(tt.ctx, f, p, tt.row, update, tt.set, int64(42)); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("pgx: got %v, want %v", err, tt.want)
			} else if err != nil && p.before != nil {
				t.Error("pgx: not rolled back")
			}
			_ = p.Rollback(background)
		})
	}
	p, _ := fake.beginPgx(background)
	if err := sqlfence.ExecRowPgx(one, newFence(t, sqlfence.SQLite), p, row(""), "UPDATE orders SET fence"); !errors.Is(err, holdfast.ErrInvalid) || p.before != nil {
		t.Errorf("pgx on SQLite: got %v", err)
	}
}

func TestTrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log []string
		events := map[string]sqlfence.Event{}
		type key struct{}
		hook := func(name string) func(context.Context, sqlfence.Event) {
			return func(ctx context.Context, e sqlfence.Event) {
				if ctx.Value(key{}) == nil || len(e.Marks) != 1 || e.Marks[0].Resource != "r" {
					t.Errorf("%s is told %v", name, e)
				}
				log = append(log, name)
				events[name] = e
			}
		}
		fake, db := newDB(t)
		f := newFence(t, sqlfence.Postgres, sqlfence.WithTrace(&sqlfence.Trace{
			Guarded: hook("guarded"), Refused: hook("refused"), Retried: hook("retried"), Unknown: hook("unknown"),
		}))
		told := func(want string) {
			t.Helper()
			if got := strings.Join(log, " "); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			log = nil
		}
		ctx := context.WithValue(token(7), key{}, true)
		fake.fail["exec"] = []error{stateError("40P01")}
		if err := f.WithTx(ctx, db, nil, write); err != nil {
			t.Fatal(err)
		}
		told("guarded retried guarded")
		if e := events["retried"]; e.Attempts != 1 || !errors.Is(e.Err, stateError("40P01")) {
			t.Errorf("retried: %v", e)
		}
		fake.sem <- struct{}{}
		time.AfterFunc(time.Second, func() { <-fake.sem })
		fake.fail["commit"] = []error{errors.New("unexpected EOF")}
		_ = f.WithTx(ctx, db, nil, write)
		told("guarded unknown")
		if e := events["unknown"]; !errors.Is(e.Err, sqlfence.ErrCommitUnknown) {
			t.Errorf("unknown: %v", e)
		}
		fake.rows["r"] = 8
		_ = f.WithTx(ctx, db, nil, write)
		told("refused")
		if e := events["refused"]; !errors.Is(e.Err, sqlfence.ErrStale) || e.Marks[0].Token != 7 {
			t.Errorf("refused: %v", e)
		}
		// Hooks that are not set are none, and those of several traces are all called.
		several := newFence(t, sqlfence.Postgres, sqlfence.WithTrace(&sqlfence.Trace{Guarded: hook("one")}),
			sqlfence.WithTrace(&sqlfence.Trace{}), sqlfence.WithTrace(&sqlfence.Trace{Guarded: hook("two")}))
		if err := several.WithTx(context.WithValue(token(9), key{}, true), db, nil, write); err != nil {
			t.Error(err)
		}
		told("one two")
		if _, err := sqlfence.New(sqlfence.Postgres, sqlfence.WithTrace(nil)); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("got %v", err)
		}
		// One that panics leaves no transaction open.
		loud := newFence(t, sqlfence.Postgres, sqlfence.WithTrace(&sqlfence.Trace{Guarded: func(context.Context, sqlfence.Event) { panic("mine") }}))
		func() {
			defer func() { _ = recover() }()
			_ = loud.WithTx(token(9), db, nil, write)
		}()
		if len(fake.sem) != 0 {
			t.Error("the transaction is open")
		}
	})
}
