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
	"time"
)

// fakeDB is a database with one number per row, as much SQL as this package sends, and one transaction at a time. It
// stands in for a driver, of which the module has none; the real ones are tested in internal/sqltest.
type fakeDB struct {
	sem chan struct{} // held by the transaction

	mu   sync.Mutex
	rows map[string]int64   // by resource
	open map[string]bool    // the rows that transactions may share
	log  []string           // begin, raise, share, read, savepoint, exec, release, commit, rollback
	fail map[string][]error // by the same names: what the next ones answer; early and late: in the place of rows, behind them
	done func()             // what somebody else does while a COMMIT that is a statement returns
	wait time.Duration      // before what fails
}

func newFake() (*fakeDB, *sql.DB) {
	f := &fakeDB{sem: make(chan struct{}, 1), rows: map[string]int64{}, open: map[string]bool{}, fail: map[string][]error{}}
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
		time.Sleep(f.wait)
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
	empty  bool             // the transaction is the one after a COMMIT that was a statement
	open   map[string]bool
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
	c.before, c.open = maps.Clone(c.db.rows), maps.Clone(c.db.open)
	return c, nil
}

func (c *fakeConn) Commit() (err error) {
	if !c.empty {
		err = c.db.did("commit")
	}
	if err != nil {
		c.db.rows, c.db.open = c.before, c.open
	}
	c.end()
	return err
}

func (c *fakeConn) Rollback() error {
	if c.empty {
		c.end()
		return nil
	}
	err := c.db.did("rollback")
	c.db.rows, c.db.open = c.before, c.open
	c.end()
	return err
}

func (c *fakeConn) end() {
	c.before, c.empty = nil, false
	<-c.db.sem
}

func (c *fakeConn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	op := "exec"
	switch {
	case query == "COMMIT; BEGIN":
		op = "commit"
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
	case op == "commit":
		if c.empty = true; c.db.done != nil {
			c.db.done()
		}
	case op == "raise":
		before := c.db.rows[args[0].Value.(string)]
		if id := c.raise(query, args); before != 0 {
			return lastID(id), nil
		}
	}
	return driver.RowsAffected(1), nil
}

// lastID is a result with the number that a statement gave to LAST_INSERT_ID.
type lastID int64

func (id lastID) LastInsertId() (int64, error) { return int64(id), nil }
func (lastID) RowsAffected() (int64, error)    { return 1, nil }

func (c *fakeConn) raise(query string, args []driver.NamedValue) int64 {
	resource, token := args[0].Value.(string), args[1].Value.(int64)
	c.db.open[resource] = strings.Contains(query, ", true FROM") || c.db.open[resource] && c.db.rows[resource] >= token
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
		return &fakeRows{[]int64{c.raise(query, args)}, c.db}, nil
	}
	op := "read"
	if strings.Contains(query, "SHARE") {
		op = "share"
	}
	if err := c.db.did(op); err != nil {
		return nil, err
	}
	row := fmt.Sprint(args[len(args)-1].Value)
	if strings.Contains(query, "parallel") { // PostgreSQL's
		if row = fmt.Sprint(args[0].Value); !c.db.open[row] && c.db.rows[row] <= args[1].Value.(int64) {
			return &fakeRows{[]int64{0}, c.db}, nil
		}
	}
	if strings.Contains(query, "HEX(resource)") && args[0].Value != fmt.Sprintf("%X", row) {
		return nil, fmt.Errorf("not the hex of %s: %s", row, args[0].Value)
	}
	if n, ok := c.db.rows[row]; ok {
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
	dest[0] = r.left[0]
	r.left = r.left[1:]
	return nil
}
