package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// fakeDB is a database with one number per row, as much SQL as this package sends, and one transaction at a time. It
// stands in for a driver, of which the module has none; the real ones are tested in internal/sqltest.
type fakeDB struct {
	sem chan struct{} // held by the transaction

	mu   sync.Mutex
	rows map[string]int64   // by resource, or table and id
	log  []string           // begin, raise, share, read, savepoint, exec, release, commit, rollback
	fail map[string][]error // by the same names: what the next ones answer; early and late: in the place of rows, behind them
	read func()             // what somebody else does before the next read
}

func newFake() (*fakeDB, *sql.DB) {
	f := &fakeDB{sem: make(chan struct{}, 1), rows: map[string]int64{}, fail: map[string][]error{}}
	return f, sql.OpenDB(f)
}

func (f *fakeDB) Connect(context.Context) (driver.Conn, error) { return &fakeConn{db: f}, nil }
func (f *fakeDB) Driver() driver.Driver                        { return nil }

// did notes an operation and returns the error that it is to fail with.
func (f *fakeDB) did(op string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op != "early" {
		f.log = append(f.log, op)
	}
	if errs := f.fail[op]; len(errs) > 0 {
		f.fail[op] = errs[1:]
		return errs[0]
	}
	return nil
}

func (f *fakeDB) ops() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.log, " ")
}

func (f *fakeDB) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.log), func(s string) bool { return s != op }))
}

type fakeConn struct {
	db     *fakeDB
	before map[string]int64 // the rows at BEGIN; nil outside of a transaction
}

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, fmt.Errorf("not prepared") }
func (c *fakeConn) Close() error                        { return nil }
func (c *fakeConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *fakeConn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	if err := c.db.did("begin"); err != nil {
		return nil, err
	}
	select {
	case c.db.sem <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.before = maps.Clone(c.db.rows)
	return c, nil
}

func (c *fakeConn) Commit() error {
	err := c.db.did("commit")
	if err != nil {
		c.db.rows = c.before
	}
	c.end()
	return err
}

func (c *fakeConn) Rollback() error {
	err := c.db.did("rollback")
	c.db.rows = c.before
	c.end()
	return err
}

func (c *fakeConn) end() {
	c.before = nil
	<-c.db.sem
}

func (c *fakeConn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	op := "exec"
	switch {
	case strings.HasPrefix(query, "SAVEPOINT"):
		op = "savepoint"
	case strings.HasPrefix(query, "RELEASE"):
		op = "release"
	case strings.Contains(query, "sqlfence"):
		op = "raise"
	}
	if err := c.db.did(op); err != nil {
		return nil, err
	}
	switch {
	case op == "raise":
		c.raise(args)
	case strings.HasPrefix(query, "UPDATE orders SET fence"): // fence, id
		token, row := args[0].Value.(int64), "orders:"+fmt.Sprint(args[1].Value)
		if current, ok := c.db.rows[row]; ok && current <= token {
			c.db.rows[row] = token
		}
	case strings.HasPrefix(query, "DELETE FROM orders"):
		delete(c.db.rows, "orders:"+fmt.Sprint(args[0].Value))
	}
	return driver.RowsAffected(1), nil
}

func (c *fakeConn) raise(args []driver.NamedValue) int64 {
	resource, token := args[0].Value.(string), args[1].Value.(int64)
	c.db.rows[resource] = max(c.db.rows[resource], token)
	return c.db.rows[resource]
}

func (c *fakeConn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if strings.Contains(query, "INSERT") {
		if err := c.db.did("raise"); err != nil {
			return nil, err
		}
		if err := c.db.did("early"); err != nil {
			c.db.fail["late"] = []error{err}
			return &fakeRows{nil, c.db}, nil
		}
		return &fakeRows{[]int64{c.raise(args)}, c.db}, nil
	}
	op := "read"
	if strings.Contains(query, "SHARE") {
		op = "share"
	}
	if err := c.db.did(op); err != nil {
		return nil, err
	}
	if read := c.db.read; read != nil {
		c.db.read = nil
		read()
	}
	row := fmt.Sprint(args[len(args)-1].Value)
	if strings.Contains(query, "HEX(resource)") && args[0].Value != fmt.Sprintf("%X", row) {
		return nil, fmt.Errorf("not the hex of %s: %s", row, args[0].Value)
	}
	if strings.Contains(query, "orders") {
		row = "orders:" + row
	}
	if n, ok := c.db.rows[row]; ok {
		if n < 0 {
			return &fakeRows{[]int64{n}, c.db}, nil // no number
		}
		if twin, ok := c.db.rows[row+"'"]; ok {
			return &fakeRows{[]int64{n, twin}, c.db}, nil
		}
		return &fakeRows{[]int64{n}, c.db}, nil
	}
	return &fakeRows{nil, c.db}, nil
}

type fakeRows struct {
	left []int64
	db   *fakeDB // for an error behind the rows
}

func (r *fakeRows) Columns() []string { return []string{"n"} }
func (r *fakeRows) Close() error      { return nil }

func (r *fakeRows) Next(dest []driver.Value) error {
	if len(r.left) == 0 {
		r.db.mu.Lock()
		defer r.db.mu.Unlock()
		if late := r.db.fail["late"]; len(late) > 0 {
			r.db.fail["late"] = late[1:]
			return late[0]
		}
		return io.EOF
	}
	if dest[0] = r.left[0]; r.left[0] < 0 {
		dest[0] = nil
	}
	r.left = r.left[1:]
	return nil
}
