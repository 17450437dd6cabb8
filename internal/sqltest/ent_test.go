package sqltest

import (
	"context"
	stdsql "database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// What ent generates with the feature sql/execquery, in short: its Tx has the methods of its config, and those hand over
// to the transaction's driver. The test below compares the methods with ent's templates.
type (
	config struct{ driver dialect.Driver }
	Tx     struct {
		config
		ctx context.Context
	}
	txDriver struct {
		dialect.Driver
		tx dialect.Tx
		mu sync.Mutex

		onCommit   []CommitHook
		onRollback []RollbackHook
	}

	Committer interface {
		Commit(context.Context, *Tx) error
	}
	CommitFunc func(context.Context, *Tx) error
	CommitHook func(Committer) Committer
	Rollbacker interface {
		Rollback(context.Context, *Tx) error
	}
	RollbackFunc func(context.Context, *Tx) error
	RollbackHook func(Rollbacker) Rollbacker
)

func (f CommitFunc) Commit(ctx context.Context, tx *Tx) error     { return f(ctx, tx) }
func (f RollbackFunc) Rollback(ctx context.Context, tx *Tx) error { return f(ctx, tx) }

var _ sqlfence.Tx = (*Tx)(nil)

// ExecContext allows calling the underlying ExecContext method of the driver if it is supported by it.
// See, database/sql#DB.ExecContext for more information.
func (c *config) ExecContext(ctx context.Context, query string, args ...any) (stdsql.Result, error) {
	ex, ok := c.driver.(interface {
		ExecContext(context.Context, string, ...any) (stdsql.Result, error)
	})
	if !ok {
		return nil, fmt.Errorf("Driver.ExecContext is not supported")
	}
	return ex.ExecContext(ctx, query, args...)
}

// QueryContext allows calling the underlying QueryContext method of the driver if it is supported by it.
// See, database/sql#DB.QueryContext for more information.
func (c *config) QueryContext(ctx context.Context, query string, args ...any) (*stdsql.Rows, error) {
	q, ok := c.driver.(interface {
		QueryContext(context.Context, string, ...any) (*stdsql.Rows, error)
	})
	if !ok {
		return nil, fmt.Errorf("Driver.QueryContext is not supported")
	}
	return q.QueryContext(ctx, query, args...)
}

// ExecContext allows calling the underlying ExecContext method of the transaction if it is supported by it.
// See, database/sql#Tx.ExecContext for more information.
func (tx *txDriver) ExecContext(ctx context.Context, query string, args ...any) (stdsql.Result, error) {
	ex, ok := tx.tx.(interface {
		ExecContext(context.Context, string, ...any) (stdsql.Result, error)
	})
	if !ok {
		return nil, fmt.Errorf("Tx.ExecContext is not supported")
	}
	return ex.ExecContext(ctx, query, args...)
}

// QueryContext allows calling the underlying QueryContext method of the transaction if it is supported by it.
// See, database/sql#Tx.QueryContext for more information.
func (tx *txDriver) QueryContext(ctx context.Context, query string, args ...any) (*stdsql.Rows, error) {
	q, ok := tx.tx.(interface {
		QueryContext(context.Context, string, ...any) (*stdsql.Rows, error)
	})
	if !ok {
		return nil, fmt.Errorf("Tx.QueryContext is not supported")
	}
	return q.QueryContext(ctx, query, args...)
}

// Commit commits the transaction.
func (tx *Tx) Commit() error {
	txDriver := tx.config.driver.(*txDriver)
	var fn Committer = CommitFunc(func(context.Context, *Tx) error {
		return txDriver.tx.Commit()
	})
	txDriver.mu.Lock()
	hooks := append([]CommitHook(nil), txDriver.onCommit...)
	txDriver.mu.Unlock()
	for i := len(hooks) - 1; i >= 0; i-- {
		fn = hooks[i](fn)
	}
	return fn.Commit(tx.ctx, tx)
}

// Rollback rollbacks the transaction.
func (tx *Tx) Rollback() error {
	txDriver := tx.config.driver.(*txDriver)
	var fn Rollbacker = RollbackFunc(func(context.Context, *Tx) error {
		return txDriver.tx.Rollback()
	})
	txDriver.mu.Lock()
	hooks := append([]RollbackHook(nil), txDriver.onRollback...)
	txDriver.mu.Unlock()
	for i := len(hooks) - 1; i >= 0; i-- {
		fn = hooks[i](fn)
	}
	return fn.Rollback(tx.ctx, tx)
}

func entSurface(t *testing.T, c *cell, driver string) {
	client := entsql.OpenDB(driver, c.db)
	c.testSurface(t, "ent", func(ctx context.Context, id int64, status string) error {
		begun, err := client.Tx(ctx)
		if err != nil {
			return err
		}
		tx := &Tx{config: config{driver: &txDriver{Driver: client, tx: begun}}, ctx: ctx}
		defer tx.Rollback()
		if err := c.fence.Guard(ctx, tx); err != nil {
			return err
		}
		if err := begun.Exec(ctx, c.q(markPaid), []any{status, id}, nil); err != nil { // what a builder does
			return err
		}
		return tx.Commit()
	})
}

func TestEntGeneratesSuchATransaction(t *testing.T) {
	t.Parallel()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "entgo.io/ent").Output()
	if err != nil {
		t.Fatal(err)
	}
	words := func(src string) string { return strings.Join(strings.Fields(src), " ") }
	template := func(name string) string {
		src, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "entc/gen/template", name))
		if err != nil {
			t.Fatal(err)
		}
		return words(string(src))
	}
	execquery, transaction := template("dialect/sql/feature/execquery.tmpl"), template("tx.tmpl")
	mine, err := os.ReadFile("ent_test.go")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, method := range strings.Split(string(mine), "\n\n") {
		at := strings.Index(method, "func (")
		body, _, ended := strings.Cut(method[max(at, 0):], "\n}\n")
		if !ended {
			body = strings.TrimSuffix(body, "\n}")
		}
		switch body = words(body); {
		case strings.HasPrefix(body, "func (c *config) "), strings.HasPrefix(body, "func (tx *txDriver) "):
			compared++
			if !strings.Contains(execquery, body) {
				t.Errorf("ent generates something else than: %s", body)
			}
		case strings.HasPrefix(body, "func (tx *Tx) "):
			compared++
			for _, verb := range []string{"Commit", "Rollback"} {
				hook := map[string]string{"Commit": "Committer", "Rollback": "Rollbacker"}[verb]
				body = strings.NewReplacer(hook, "{{ $iface }}", "on"+verb, "{{ $onFuncs }}", verb, "{{ $func }}").Replace(body)
			}
			if !strings.Contains(transaction, body) {
				t.Errorf("ent generates something else than: %s", body)
			}
		}
	}
	if compared != 6 || !strings.Contains(transaction, "type Tx struct { config ") {
		t.Errorf("compared %d methods, want 6, of a Tx that embeds its config", compared)
	}
}
