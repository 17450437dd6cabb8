package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// tables names the tables of a scene.
type tables struct {
	database                *database
	products, sales, fences string
}

func (d *database) tables(prefix, scene string) *tables {
	prefix += "_" + scene + "_"
	return &tables{database: d, products: prefix + "products", sales: prefix + "sales", fences: prefix + "fences"}
}

// store is one replica's way to the tables, with a connection pool of its own.
type store struct {
	db *sql.DB
	*tables
	fence *sqlfence.Fence
}

type sale struct {
	order, product string
	serial         int
	replica        string
}

func (t *tables) open() (*store, error) {
	fence, err := sqlfence.New(t.database.dialect, sqlfence.WithTable(t.fences))
	if err != nil {
		return nil, err
	}
	db, err := t.database.open()
	if err != nil {
		return nil, err
	}
	return &store{db: db, tables: t, fence: fence}, nil
}

func (s *store) close() error { return s.db.Close() }

// query fills in the names of the tables and writes the placeholders the database's way.
func (s *store) query(text string) string {
	text = strings.NewReplacer("PRODUCTS", s.products, "SALES", s.sales).Replace(text)
	if s.database.dialect != sqlfence.Postgres {
		return text
	}
	var b strings.Builder
	for i, part := range strings.Split(text, "?") {
		if i > 0 {
			fmt.Fprintf(&b, "$%d", i)
		}
		b.WriteString(part)
	}
	return b.String()
}

// create makes the tables and fills the shelves. A real shop would put UNIQUE (product, serial) on the sales
// and get an error instead of a second sale, after the customer has paid. Here it would only hide from the
// audit what the scenes are there to show.
func (s *store) create(ctx context.Context, products []string, stock int) error {
	for _, text := range []string{
		`CREATE TABLE PRODUCTS (id VARCHAR(64) NOT NULL PRIMARY KEY, stock INTEGER NOT NULL)`,
		`CREATE TABLE SALES (order_id VARCHAR(64) NOT NULL, product VARCHAR(64) NOT NULL,
			serial INTEGER NOT NULL, replica VARCHAR(64) NOT NULL)`,
		`CREATE INDEX SALES_order ON SALES (order_id)`,
		s.fence.DDL(),
	} {
		if _, err := s.db.ExecContext(ctx, s.query(text)); err != nil {
			return err
		}
	}
	for _, p := range products {
		if _, err := s.db.ExecContext(ctx, s.query(`INSERT INTO PRODUCTS (id, stock) VALUES (?, ?)`), p, stock); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) drop(ctx context.Context) error {
	var errs []error
	for _, text := range []string{`DROP TABLE IF EXISTS SALES`, `DROP TABLE IF EXISTS PRODUCTS`, `DROP TABLE IF EXISTS ` + s.fences} {
		_, err := s.db.ExecContext(ctx, s.query(text))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *store) stock(ctx context.Context, product string) (left int, err error) {
	err = s.db.QueryRowContext(ctx, s.query(`SELECT stock FROM PRODUCTS WHERE id = ?`), product).Scan(&left)
	return left, err
}

// sold returns the serial number that an order got; sql.ErrNoRows if there is no such order yet.
func (s *store) sold(ctx context.Context, order string) (serial int, err error) {
	err = s.db.QueryRowContext(ctx, s.query(`SELECT serial FROM SALES WHERE order_id = ?`), order).Scan(&serial)
	return serial, err
}

// sell writes a sale and the stock that is left after it, both or neither.
func (s *store) sell(ctx context.Context, sold sale, left int) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := s.record(ctx, tx, sold, left); err != nil {
		return err
	}
	return tx.Commit()
}

// sellFenced does the same as the holder of the lock in ctx, whom the database refuses if it has seen a later one.
func (s *store) sellFenced(ctx context.Context, sold sale, left int) error {
	return s.fence.WithTx(ctx, s.db, nil, func(tx *sql.Tx) error { return s.record(ctx, tx, sold, left) })
}

func (s *store) record(ctx context.Context, tx *sql.Tx, sold sale, left int) error {
	_, err := tx.ExecContext(ctx, s.query(`UPDATE PRODUCTS SET stock = ? WHERE id = ?`), left, sold.product)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.query(`INSERT INTO SALES (order_id, product, serial, replica) VALUES (?, ?, ?, ?)`),
		sold.order, sold.product, sold.serial, sold.replica)
	return err
}

// ledger is everything that the tables say.
type ledger struct {
	stock map[string]int
	sales []sale
}

func (s *store) ledger(ctx context.Context) (*ledger, error) {
	l := &ledger{stock: map[string]int{}}
	err := s.each(ctx, `SELECT id, stock FROM PRODUCTS`, func(rows *sql.Rows) error {
		var id string
		var stock int
		err := rows.Scan(&id, &stock)
		l.stock[id] = stock
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.each(ctx, `SELECT order_id, product, serial, replica FROM SALES`, func(rows *sql.Rows) error {
		var one sale
		err := rows.Scan(&one.order, &one.product, &one.serial, &one.replica)
		l.sales = append(l.sales, one)
		return err
	})
	return l, err
}

func (s *store) each(ctx context.Context, text string, row func(*sql.Rows) error) error {
	rows, err := s.db.QueryContext(ctx, s.query(text))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
