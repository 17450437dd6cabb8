package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/sqlfence"
)

// Store is one replica's access to the tables of a scene, with a connection pool of its own.
type Store struct {
	db                      *sql.DB
	dialect                 sqlfence.Dialect
	products, sales, fences string
	fence                   *sqlfence.Fence
}

// Sale is a unit that an order got. The units of a product are numbered.
type Sale struct {
	Order, Product string
	Serial         int
	Replica        string
}

// Store opens the tables of a scene.
func (s *Servers) Store(scene string) (*Store, error) {
	prefix := s.Prefix + "_" + scene + "_"
	fence, err := sqlfence.New(s.Database.dialect, sqlfence.WithTable(prefix+"fences"))
	if err != nil {
		return nil, err
	}
	db, err := s.Database.open()
	if err != nil {
		return nil, err
	}
	return &Store{
		db: db, dialect: s.Database.dialect, fence: fence,
		products: prefix + "products", sales: prefix + "sales", fences: prefix + "fences",
	}, nil
}

func (s *Store) Close() error { return s.db.Close() }

// query fills in the names of the tables, and writes placeholders in the way of the database.
func (s *Store) query(text string) string {
	text = strings.NewReplacer("PRODUCTS", s.products, "SALES", s.sales).Replace(text)
	if s.dialect != sqlfence.Postgres {
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

// create makes the tables and fills the shelves. A real shop would put UNIQUE (product, serial) on the sales, and get an
// error instead of a second sale, after the customer has paid. Here that would only hide from the audit what the scenes
// show.
func (s *Store) create(ctx context.Context, products []string, stock int) error {
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

func (s *Store) drop(ctx context.Context) error {
	var errs []error
	for _, text := range []string{`DROP TABLE IF EXISTS SALES`, `DROP TABLE IF EXISTS PRODUCTS`, `DROP TABLE IF EXISTS ` + s.fences} {
		_, err := s.db.ExecContext(ctx, s.query(text))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Stock returns what is left of a product.
func (s *Store) Stock(ctx context.Context, product string) (left int, err error) {
	err = s.db.QueryRowContext(ctx, s.query(`SELECT stock FROM PRODUCTS WHERE id = ?`), product).Scan(&left)
	return left, err
}

// Sold returns the serial number that an order got, or sql.ErrNoRows if there is no such order yet.
func (s *Store) Sold(ctx context.Context, order string) (serial int, err error) {
	err = s.db.QueryRowContext(ctx, s.query(`SELECT serial FROM SALES WHERE order_id = ?`), order).Scan(&serial)
	return serial, err
}

// Sell writes a sale and the stock that is left after it, both or neither.
func (s *Store) Sell(ctx context.Context, sold Sale, left int) error {
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

// SellFenced does the same as the holder of the lock in ctx. The database refuses it if it has seen a later holder.
func (s *Store) SellFenced(ctx context.Context, sold Sale, left int) error {
	return s.fence.WithTx(ctx, s.db, nil, func(ctx context.Context, tx *sql.Tx) error { return s.record(ctx, tx, sold, left) })
}

func (s *Store) record(ctx context.Context, tx *sql.Tx, sold Sale, left int) error {
	_, err := tx.ExecContext(ctx, s.query(`UPDATE PRODUCTS SET stock = ? WHERE id = ?`), left, sold.Product)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.query(`INSERT INTO SALES (order_id, product, serial, replica) VALUES (?, ?, ?, ?)`),
		sold.Order, sold.Product, sold.Serial, sold.Replica)
	return err
}

// Ledger is the content of the tables.
type Ledger struct {
	Stock map[string]int
	Sales []Sale
}

// Ledger reads the content of the tables.
func (s *Store) Ledger(ctx context.Context) (*Ledger, error) {
	l := &Ledger{Stock: map[string]int{}}
	err := s.each(ctx, `SELECT id, stock FROM PRODUCTS`, func(rows *sql.Rows) error {
		var id string
		var stock int
		err := rows.Scan(&id, &stock)
		l.Stock[id] = stock
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.each(ctx, `SELECT order_id, product, serial, replica FROM SALES`, func(rows *sql.Rows) error {
		var one Sale
		err := rows.Scan(&one.Order, &one.Product, &one.Serial, &one.Replica)
		l.Sales = append(l.Sales, one)
		return err
	})
	return l, err
}

// Count is what the books say of a product.
type Count struct{ Sold, Twice, Left int }

// Counts adds up the ledger by product.
func (s *Store) Counts(ctx context.Context) (map[string]Count, error) {
	counts := map[string]Count{}
	err := s.each(ctx, `SELECT p.id, p.stock, COUNT(s.serial), COUNT(DISTINCT s.serial) FROM PRODUCTS p
		LEFT JOIN SALES s ON s.product = p.id GROUP BY p.id, p.stock`, func(rows *sql.Rows) error {
		var id string
		var left, sold, units int
		err := rows.Scan(&id, &left, &sold, &units)
		counts[id] = Count{Sold: sold, Twice: sold - units, Left: left}
		return err
	})
	return counts, err
}

// Advance gives the database the token of the lock in ctx. From then on the database refuses older ones.
func (s *Store) Advance(ctx context.Context) error { return s.fence.Advance(ctx, s.db) }

// Newest returns the largest token of a lock that the database has seen.
func (s *Store) Newest(ctx context.Context, key string) (int64, error) {
	return s.fence.Current(ctx, s.db, key)
}

func (s *Store) each(ctx context.Context, text string, row func(*sql.Rows) error) error {
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
