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
	"github.com/holdfast-go/holdfast/internal/servertest"
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
	parallel := func(n int64) context.Context { return parallel(token(n), f) }
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
	// A holder that was not parallel is, once the row says so.
	if err := f.WithTx(token(9), db, nil, write); err != nil || fake.open["r"] {
		t.Fatalf("got %v, and a row to share: %v", err, fake.open["r"])
	}
	fake.log = nil
	if err := f.WithTx(parallel(9), db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "then parallel", "begin share rollback begin share rollback begin raise commit begin share exec commit")
	if err := f.WithTx(token(9), db, nil, write); err != nil {
		t.Fatal(err)
	}
	fake.log = nil
	if err := f.WithTx(parallel(9), db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "alone and then parallel", "begin share exec commit")
	// Advance is never parallel, and Guard, which cannot begin again, does not let one through that it cannot hold back.
	tx := begin(t, db)
	if err := f.Guard(parallel(10), tx); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "Advance") {
		t.Errorf("got %v", err)
	}
	did(t, fake, "behind", "begin share rollback")
	if err := f.Advance(parallel(10), db); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "advance", "begin raise commit")
	tx = begin(t, db)
	if err := f.Guard(parallel(10), tx); err != nil {
		t.Error(err)
	}
	_ = tx.Rollback()
	fake.log = nil
	// SQLite has one writer, and no lock to share.
	if err := newFence(t, sqlfence.SQLite).WithTx(parallel(10), db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "SQLite", "begin raise exec commit")
}

// It is for one resource and token, and the mark that was added last says it.
func TestParallelIsForOneMark(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	fake.rows["r"], fake.open["r"] = 7, true
	ctx := sqlfence.Mark{Resource: "order", Token: 3}.In(parallel(token(7), f))
	if err := f.WithTx(ctx, db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "order and r", "begin raise share exec commit")
	// A later token of the same resource is another holder's, as a lock that was acquired anew.
	later, err := f.Marks(sqlfence.Mark{Resource: "r", Token: 8}.In(parallel(token(7), f)))
	if want := []sqlfence.Mark{{Resource: "r", Token: 8}}; err != nil || !slices.Equal(later, want) {
		t.Errorf("a later token: got %v, %v, want %v", later, err, want)
	}
	alone := sqlfence.Mark{Resource: "r", Token: 7}
	if err := f.WithTx(alone.In(parallel(token(7), f)), db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "twice", "begin raise exec commit")
}

// A row that is not behind is not raised: to raise it is to wait for all that share it.
func TestOneRowAdvances(t *testing.T) {
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	fake.rows["r"], fake.open["r"] = 7, true
	ctx := parallel(sqlfence.Mark{Resource: "order", Token: 3}.In(token(7)), f)
	const advance = "begin share rollback begin raise commit "
	if err := f.WithTx(ctx, db, nil, write); err != nil {
		t.Fatal(err)
	}
	did(t, fake, "a new one", "begin share rollback "+advance+"begin share share exec commit")
	ctx = parallel(sqlfence.Mark{Resource: "order", Token: 4}.In(token(8)), f)
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
				ctx = sqlfence.Mark{Resource: r, Token: 7}.In(ctx)
			}
			ctx = parallel(ctx, f)
			begins := 0
			pruning := beginning{db, func() {
				if begins++; begins == 4 { // behind, behind in its turn, advance
					clear(fake.rows)
				}
			}}
			if err := f.WithTx(ctx, pruning, nil, write); err != nil {
				t.Errorf("%v: %v", resources, err)
			}
			if fake.count("raise") != 1+len(resources) || fake.count("exec") != 1 {
				t.Errorf("%v: got %s", resources, fake.ops())
			}
		})
	}
	// BeginTx repeats nothing, and does not send the caller to Advance, which was called.
	fake, db := newDB(t)
	f := newFence(t, sqlfence.Postgres)
	pruning := beginning{db, func() {
		if fake.count("begin") == 3 {
			clear(fake.rows)
		}
	}}
	_, err := f.BeginTx(parallel(token(7), f), pruning, nil)
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
		ctx := parallel(token(7), f)
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
		short, cancel := context.WithCancel(parallel(token(8), f))
		hook := make(chan struct{})
		go func() {
			first <- f.WithTx(parallel(token(8), f), beginning{db, func() {
				if fake.count("begin") > 20 {
					<-hook // in its turn
				}
			}}, nil, write)
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

// All locks and marks of the context guard, however the transaction is begun.
func TestMarksGuardBesideLocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		locker, err := holdfast.New(servertest.NewBubble(t).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer locker.Shutdown(background)
		lock, err := locker.Acquire(background, "r")
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release(background)
		fake, db := newDB(t)
		f := newFence(t, sqlfence.Postgres)
		ctx := sqlfence.Mark{Resource: "order", Token: 3}.In(lock.Context(background))
		for name, run := range map[string]func() error{
			"WithTx": func() error { return f.WithTx(ctx, db, nil, write) },
			"BeginTx": func() error {
				tx, err := f.BeginTx(ctx, db, nil)
				if err != nil {
					return err
				}
				return tx.Commit()
			},
		} {
			fake.rows, fake.log = map[string]int64{}, nil
			if err := run(); err != nil || fake.count("raise") != 2 || fake.rows["order"] != 3 || fake.rows["r"] != lock.Token() {
				t.Errorf("%s: got %v and %s", name, err, fake.ops())
			}
			fake.rows["order"] = 9
			if err := run(); !errors.Is(err, sqlfence.ErrStale) {
				t.Errorf("%s: got %v, want stale", name, err)
			}
			if len(fake.sem) != 0 {
				t.Fatalf("%s leaves a transaction open", name)
			}
		}
		// A mark of the lock's own resource says how it guards.
		own := sqlfence.Mark{Resource: "r", Token: lock.Token(), Parallel: true}
		if got, err := f.Marks(own.In(lock.Context(background))); err != nil || !slices.Equal(got, []sqlfence.Mark{own}) {
			t.Errorf("got %v, %v, want %v", got, err, own)
		}
	})
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
