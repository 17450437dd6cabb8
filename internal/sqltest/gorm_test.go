package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/gormfence"
	gormmysql "gorm.io/driver/mysql"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	gormtests "gorm.io/gorm/utils/tests"
)

type item struct {
	ID     int64 `gorm:"primaryKey;autoIncrement:false"`
	Status string
}

// sqliteDialector is for modernc.org/sqlite, whose own for gorm registers a second driver of that name, as gorm's needs cgo.
type sqliteDialector struct {
	gormtests.DummyDialector
	conn gorm.ConnPool
}

func (d sqliteDialector) Initialize(db *gorm.DB) error {
	db.ConnPool = d.conn
	return d.DummyDialector.Initialize(db)
}

func (sqliteDialector) SavePoint(tx *gorm.DB, name string) error {
	return tx.Exec("SAVEPOINT " + name).Error
}

func (sqliteDialector) RollbackTo(tx *gorm.DB, name string) error {
	return tx.Exec("ROLLBACK TO SAVEPOINT " + name).Error
}

func (c *cell) dialector(db gorm.ConnPool) gorm.Dialector {
	switch c.dialect {
	case sqlfence.MySQL:
		return gormmysql.New(gormmysql.Config{Conn: db})
	case sqlfence.SQLite:
		return sqliteDialector{conn: db}
	}
	return gormpostgres.New(gormpostgres.Config{Conn: db})
}

// openGorm opens gorm with the plugin.
func (c *cell) openGorm(t *testing.T, db gorm.ConnPool, cfg gorm.Config, opts ...gormfence.Option) *gorm.DB {
	t.Helper()
	cfg.Logger = logger.Discard
	g, err := gorm.Open(c.dialector(db), &cfg)
	if err == nil {
		err = g.Use(gormfence.New(c.fence, opts...))
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// withGorm is the plugin as a guard for histories, with prepared statements for every other token.
func (c *cell) withGorm(t *testing.T, pool *sql.DB) guard {
	var dbs [2]*gorm.DB
	for i := range dbs {
		dbs[i] = c.openGorm(t, pool, gorm.Config{PrepareStmt: i == 1, DisableAutomaticPing: true})
	}
	return func(ctx context.Context, c *cell, _ *sql.DB, marks []sqlfence.Mark, fn func(dbtx) error) error {
		db := dbs[marks[0].Token%2].WithContext(under(ctx, marks...))
		return db.Transaction(func(tx *gorm.DB) error { return fn(tx.Statement.ConnPool) }, c.opts)
	}
}

// serial has an id of the database's, which gorm reads with RETURNING where there is that.
type serial struct {
	ID     int64
	Status string
}

func (c *cell) serials(t *testing.T) {
	id := map[sqlfence.Dialect]string{
		sqlfence.Postgres: "bigserial PRIMARY KEY",
		sqlfence.MySQL:    "bigint AUTO_INCREMENT PRIMARY KEY",
		sqlfence.SQLite:   "integer PRIMARY KEY",
	}[c.dialect]
	c.exec(t, "CREATE TABLE serials (id "+id+", status varchar(20) NOT NULL)")
}

// gormSurfaces are those of gorm, by hand and with the plugin, with PrepareStmt and without.
func gormSurfaces(t *testing.T, c *cell) {
	c.serials(t)
	for _, prepare := range []bool{false, true} {
		db, err := gorm.Open(c.dialector(c.db), &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		c.testSurface(t, fmt.Sprintf("gorm,prepare=%t", prepare), func(ctx context.Context, id int64, status string) error {
			return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				if err := c.fence.Guard(ctx, tx.Statement.ConnPool.(sqlfence.Tx)); err != nil {
					return err
				}
				return tx.Save(&item{id, status}).Error
			})
		})
		t.Run(fmt.Sprintf("gorm,prepare=%t,pool", prepare), func(t *testing.T) {
			if _, ok := db.Statement.ConnPool.(sqlfence.Tx); ok {
				t.Error("the pool is taken for a transaction")
			}
		})
		t.Run(fmt.Sprintf("gorm,prepare=%t,savepoint", prepare), func(t *testing.T) { c.testSavepoint(t, db) })
		for _, skip := range []bool{false, true} {
			cfg := gorm.Config{PrepareStmt: prepare, SkipDefaultTransaction: skip}
			pluginSurfaces(t, c, c.openGorm(t, c.db, cfg), fmt.Sprintf("gormfence,prepare=%t,skip=%t,", prepare, skip))
		}
		required := c.openGorm(t, c.db, gorm.Config{PrepareStmt: prepare}, gormfence.WithLockRequired())
		t.Run(fmt.Sprintf("gormfence,prepare=%t", prepare), func(t *testing.T) { c.testPlugin(t, required) })
	}
	t.Run("gormfence,slips", func(t *testing.T) { c.testSlips(t) })
	if c.dialect == sqlfence.SQLite {
		return // there is no connection, and nothing is parallel
	}
	t.Run("gormfence,parallel", func(t *testing.T) { c.testGormParallel(t) })
	for _, prepare := range []bool{false, true} {
		t.Run(fmt.Sprintf("gormfence,prepare=%t,broken commit", prepare), func(t *testing.T) {
			f := &faults{}
			g := c.openGorm(t, c.connect(t, f.dial), gorm.Config{PrepareStmt: prepare})
			brokenCommits(t, c, f, fmt.Sprintf("gorm%t", prepare), func(ctx context.Context, fn func()) error {
				return g.WithContext(ctx).Transaction(func(*gorm.DB) error { fn(); return nil }, c.opts)
			})
			brokenCommits(t, c, f, fmt.Sprintf("gorm%t,Begin", prepare), func(ctx context.Context, fn func()) error {
				tx := g.WithContext(ctx).Begin(c.opts)
				if tx.Error != nil {
					return tx.Error
				}
				fn()
				return tx.Commit().Error
			})
		})
	}
}

// pluginSurfaces are the ways to write with gorm.
func pluginSurfaces(t *testing.T, c *cell, db *gorm.DB, prefix string) {
	// MariaDB returns rows of an INSERT, and of no UPDATE.
	replace := "INSERT INTO items (id, status) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status RETURNING id, status"
	if c.dialect == sqlfence.MySQL {
		replace = "REPLACE INTO items (id, status) VALUES (?, ?) RETURNING id, status"
	}
	returned := func(it item, id int64, status string, err error) error {
		if err == nil && it != (item{id, status}) {
			return fmt.Errorf("returned %+v", it)
		}
		return err
	}
	update := func(db *gorm.DB, id int64, status string) error {
		return db.Model(&item{ID: id}).Update("status", status).Error
	}
	nested := func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			err := tx.Transaction(func(tx *gorm.DB) error {
				if err := update(tx, id, "inner"); err != nil {
					return err
				}
				return tx.Exec("UPDATE nowhere SET n = 1").Error // after this PostgreSQL lets only a rollback through
			})
			switch {
			case err == nil:
				return errors.New("the nested one succeeds")
			case errors.Is(err, sqlfence.ErrStale): // on a connection, where the write is the first that is guarded
				return err
			}
			return tx.Transaction(func(tx *gorm.DB) error { return update(tx, id, status) })
		})
	}
	for name, write := range map[string]func(db *gorm.DB, id int64, status string) error{
		"Update": update,
		"Save":   func(db *gorm.DB, id int64, status string) error { return db.Save(&item{id, status}).Error },
		"Delete and Create": func(db *gorm.DB, id int64, status string) error {
			if err := db.Delete(&item{ID: id}).Error; err != nil {
				return err
			}
			return db.Create(&item{id, status}).Error
		},
		"CreateInBatches": func(db *gorm.DB, id int64, status string) error {
			items := []item{{id, status}, {databases.Add(1), status}, {databases.Add(1), status}}
			return db.Clauses(clause.OnConflict{UpdateAll: true}).CreateInBatches(items, 2).Error
		},
		"Create, returning": func(db *gorm.DB, id int64, status string) error {
			s := serial{Status: status}
			if err := db.Create(&s).Error; err != nil {
				return err
			}
			if s.ID == 0 {
				return errors.New("no id was returned")
			}
			return update(db, id, status)
		},
		"Exec": func(db *gorm.DB, id int64, status string) error { return db.Exec(markPaid, status, id).Error },
		"Transaction": func(db *gorm.DB, id int64, status string) error {
			return db.Transaction(func(tx *gorm.DB) error { return update(tx, id, status) })
		},
		"Transaction, options": func(db *gorm.DB, id int64, status string) error {
			return db.Transaction(func(tx *gorm.DB) error { return update(tx, id, status) }, &sql.TxOptions{Isolation: sql.LevelSerializable})
		},
		"Transaction, Exec": func(db *gorm.DB, id int64, status string) error {
			return db.Transaction(func(tx *gorm.DB) error { return tx.Exec(markPaid, status, id).Error })
		},
		"Begin": func(db *gorm.DB, id int64, status string) error {
			tx := db.Begin()
			if tx.Error != nil {
				return tx.Error
			}
			defer tx.Rollback()
			if err := update(tx, id, status); err != nil {
				return err
			}
			return tx.Commit().Error
		},
		"nested": nested,
		"Connection, nested": func(db *gorm.DB, id int64, status string) error {
			return db.Connection(func(conn *gorm.DB) error { return nested(conn, id, status) })
		},
		"FOR UPDATE": func(db *gorm.DB, id int64, status string) error {
			return db.Transaction(func(tx *gorm.DB) error {
				var it item
				if c.dialect != sqlfence.SQLite {
					tx = tx.Clauses(clause.Locking{Strength: "UPDATE"})
				}
				if err := tx.First(&it, id).Error; err != nil {
					return err
				}
				return update(tx.Session(&gorm.Session{NewDB: true}), id, status)
			})
		},
		"Connection": func(db *gorm.DB, id int64, status string) error {
			return db.Connection(func(conn *gorm.DB) error { return conn.Exec(markPaid, status, id).Error })
		},
		"Connection, Transaction": func(db *gorm.DB, id int64, status string) error {
			return db.Connection(func(conn *gorm.DB) error {
				return conn.Transaction(func(tx *gorm.DB) error { return update(tx, id, status) })
			})
		},
		"session": func(db *gorm.DB, id int64, status string) error {
			return update(db.Session(&gorm.Session{NewDB: true, PrepareStmt: true, SkipDefaultTransaction: true}), id, status)
		},
		"Raw and Find": func(db *gorm.DB, id int64, status string) error {
			var it item
			err := db.Raw(replace, id, status).Find(&it).Error
			return returned(it, id, status, err)
		},
		"Raw and Scan": func(db *gorm.DB, id int64, status string) error {
			return db.Transaction(func(tx *gorm.DB) error {
				var it item
				err := tx.Raw(replace, id, status).Scan(&it).Error
				return returned(it, id, status, err)
			})
		},
		"Raw and Rows": func(db *gorm.DB, id int64, status string) error {
			return db.Transaction(func(tx *gorm.DB) error {
				rows, err := tx.Raw(replace, id, status).Rows()
				if err != nil {
					return err
				}
				defer rows.Close()
				var it item
				for rows.Next() {
					if err := tx.ScanRows(rows, &it); err != nil {
						return err
					}
				}
				return returned(it, id, status, rows.Err())
			})
		},
	} {
		c.testSurface(t, prefix+name, func(ctx context.Context, id int64, status string) error {
			return write(db.WithContext(ctx), id, status)
		})
	}
	if n := c.number(t, "SELECT (SELECT count(*) FROM items WHERE status = 'stale') + (SELECT count(*) FROM serials WHERE status = 'stale')"); n != 0 {
		t.Errorf("%d rows of stale holders", n)
	}
}

// testPlugin is about what the plugin does apart from guarding. db requires locks.
func (c *cell) testPlugin(t *testing.T, db *gorm.DB) {
	id := databases.Add(1)
	ctx := sqlfence.Mark{Resource: fmt.Sprintf("plugin:%d", id), Token: 7}.In(within(t))
	guarded := db.WithContext(ctx)
	if err := guarded.Create(&item{id, "new"}).Error; err != nil {
		t.Fatal(err)
	}
	// A read needs no lock, and a read-only transaction no guard.
	free := db.WithContext(within(t))
	var it item
	var status string
	for what, err := range map[string]error{
		"First":       free.First(&it, id).Error,
		"Raw, First":  free.Raw("SELECT * FROM items WHERE id = ?", id).First(&it).Error,
		"Raw, Scan":   free.Raw("SELECT status FROM items WHERE id = ?", id).Scan(&status).Error,
		"WITH":        free.Raw("WITH x AS (SELECT status FROM items WHERE id = ?) SELECT status FROM x", id).Scan(&status).Error,
		"Row":         guarded.Raw("SELECT status FROM items WHERE id = ?", id).Row().Scan(&status),
		"Pluck":       free.Model(&item{}).Where("id = ?", id).Pluck("status", &status).Error,
		"Transaction": free.Transaction(func(tx *gorm.DB) error { return tx.First(&it, id).Error }),
		"read-only": db.WithContext(sqlfence.Mark{Resource: fmt.Sprintf("plugin:%d", id), Token: 6}.In(within(t))).Transaction(func(tx *gorm.DB) error {
			return tx.First(&it, id).Error
		}, &sql.TxOptions{ReadOnly: true}),
	} {
		if err != nil || it.ID != id || status != "new" {
			t.Errorf("%s: got %v, %+v and %s", what, err, it, status)
		}
	}
	if c.dialect != sqlfence.SQLite { // which has no FOR UPDATE
		locking := clause.Locking{Strength: "UPDATE"}
		for what, err := range map[string]error{
			"First":     guarded.Clauses(locking).First(&it, id).Error,
			"Raw, Scan": guarded.Raw("SELECT status FROM items WHERE id = ? FOR UPDATE", id).Scan(&status).Error,
		} {
			if err != nil {
				t.Errorf("%s FOR UPDATE: %v", what, err)
			}
		}
	}
	// A write does, of whatever kind.
	for what, err := range map[string]error{
		"Exec":   free.Exec("UPDATE items SET status = 'free' WHERE id = ?", id).Error,
		"Delete": free.Delete(&item{ID: id}).Error,
		"Save":   free.Save(&item{id, "free"}).Error,
		"in a transaction": free.Transaction(func(tx *gorm.DB) error {
			return tx.Exec("UPDATE items SET status = 'free' WHERE id = ?", id).Error
		}),
	} {
		if !errors.Is(err, sqlfence.ErrNoToken) || !errors.Is(err, gormfence.ErrUnguarded) {
			t.Errorf("%s without a lock: got %v, want %v", what, err, gormfence.ErrUnguarded)
		}
	}
	// Rows that are handed out outlive any transaction around the statement.
	const returning = "INSERT INTO items (id, status) VALUES (?, 'free') RETURNING status" // MariaDB has no UPDATE of that kind
	refused := map[string]string{"INSERT": returning}
	if c.dialect == sqlfence.Postgres {
		refused["WITH"] = "WITH x AS (INSERT INTO items (id, status) VALUES (?, 'free') RETURNING status) SELECT status FROM x"
	}
	for what, query := range refused {
		for name, err := range map[string]error{
			"Scan": guarded.Raw(query, databases.Add(1)).Scan(&status).Error,
			"Row":  guarded.Raw(query, databases.Add(1)).Row().Scan(&status),
		} {
			if !errors.Is(err, gormfence.ErrUnguarded) {
				t.Errorf("%s of %s outside of a transaction: got %v, want %v", name, what, err, gormfence.ErrUnguarded)
			}
		}
	}
	if n := c.number(t, "SELECT count(*) FROM items WHERE status = 'free'"); n != 0 {
		t.Errorf("%d writes were not guarded", n)
	}
	if c.dialect != sqlfence.SQLite { // whose dialector here has no migrator
		type Fresh struct{ ID, N int64 }
		if err := errors.Join(guarded.AutoMigrate(&Fresh{}), guarded.AutoMigrate(&Fresh{}), guarded.Create(&Fresh{N: 1}).Error, guarded.Migrator().DropTable(&Fresh{})); err != nil {
			t.Errorf("a migration under a lock: %v", err)
		}
		if guarded.Migrator().CurrentDatabase() == "" {
			t.Error("the database has no name")
		}
	}
	// A guard outlives the savepoints of nested transactions.
	err := guarded.Transaction(func(tx *gorm.DB) error {
		_ = tx.Transaction(func(*gorm.DB) error { return errAbort })
		if err := tx.Save(&item{id, "after"}).Error; err != nil {
			return err
		}
		var token int64
		err := tx.Raw("SELECT token FROM sqlfence WHERE resource = ?", fmt.Sprintf("plugin:%d", id)).Scan(&token).Error
		if token != 7 {
			t.Errorf("the token is %d after a nested transaction was rolled back, want 7", token)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if c.dialect == sqlfence.MySQL {
		c.testGormGuardGone(t, guarded)
	}
}

// testGormGuardGone takes no notice of what ended the transaction.
func (c *cell) testGormGuardGone(t *testing.T, db *gorm.DB) {
	for _, query := range []string{"CREATE TABLE IF NOT EXISTS gorm_gone (n bigint)", "BEGIN"} {
		err := db.Transaction(func(tx *gorm.DB) error {
			_, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, query)
			return err
		})
		if !errors.Is(err, sqlfence.ErrCommitUnknown) {
			t.Errorf("%s within a transaction: got %v, want %v", query, err, sqlfence.ErrCommitUnknown)
		}
	}
	// Also where the lock is over by then.
	over, release := heldLock(t)
	err := db.WithContext(over).Transaction(func(tx *gorm.DB) error {
		defer release()
		return tx.Exec("CREATE TABLE IF NOT EXISTS gorm_gone (n bigint)").Error
	})
	if !errors.Is(err, sqlfence.ErrCommitUnknown) || !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("DDL, and the lock is released: got %v, want %v and %v", err, sqlfence.ErrCommitUnknown, holdfast.ErrLost)
	}
	// After the context has ended, and after a commit by hand, it is known.
	ctx, cancel := context.WithCancel(db.Statement.Context)
	err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || errors.Is(err, sqlfence.ErrCommitUnknown) {
		t.Errorf("a context that ends: got %v, want %v", err, context.Canceled)
	}
	tx := db.Begin()
	tx.Rollback()
	if err := tx.Commit().Error; !errors.Is(err, sql.ErrTxDone) || errors.Is(err, sqlfence.ErrCommitUnknown) {
		t.Errorf("COMMIT after ROLLBACK: got %v, want %v", err, sql.ErrTxDone)
	}
}

// testSlips has a stale holder run statements that look like reads where databases take text apart in different ways.
func (c *cell) testSlips(t *testing.T) {
	db := c.db
	var queries []string
	switch c.dialect {
	case sqlfence.Postgres:
		queries = []string{
			"WITH old AS (SELECT id AS key FROM slips ORDER BY key) UPDATE slips SET status = 'stale' FROM old WHERE id = key",
			"WITH RECURSIVE r AS (SELECT 1 AS id UNION ALL SELECT id + 1 FROM r WHERE id < 2) SEARCH DEPTH FIRST BY id SET key " +
				"UPDATE slips SET status = 'stale' FROM r WHERE slips.id = r.id",
			"EXPLAIN ANALYSE DELETE FROM slips",
			"EXPLAIN (ANALYSE) DELETE FROM slips",
			`EXPLAIN ("analyze") DELETE FROM slips`,
			"WITH a AS (SELECT $$it's$$::text AS n), d AS (DELETE FROM slips RETURNING id) SELECT n, $$that's$$ FROM a, d",
			"WITH d AS ( -- all\rDELETE FROM slips RETURNING id) SELECT * FROM d",
			"WITH d AS (/* /* */ ' */ DELETE FROM slips RETURNING id /* ' */) SELECT * FROM d",
			"WITH a AS (SELECT E'a'\n'\\'' AS n), d AS (DELETE FROM slips WHERE status <> '') SELECT 1",
			`WITH a AS (SELECT 'C:\' AS "c'", E'a' --` + "\n" + `'\'' AS n), d AS (DELETE FROM slips RETURNING id) SELECT n AS "y'" FROM a, d -- "`,
		}
	case sqlfence.MySQL:
		multi, err := sql.Open("mysql", c.dsn+"&multiStatements=true&sql_mode=%27NO_BACKSLASH_ESCAPES%27")
		if err != nil {
			t.Fatal(err)
		}
		db = closing(t, multi)
		queries = []string{
			"SET /*!100100 STATEMENT*/ max_statement_time=1 FOR DELETE FROM slips",
			"SET /*M!100100 STATEMENT*/ max_statement_time=1 FOR DELETE FROM slips",
			"SELECT 5--1; DELETE FROM slips",
			"SELECT 1 # it's\n; DELETE FROM slips # it's",
			`SELECT '\'; DELETE FROM slips WHERE status <> "'" # "`,
		}
	case sqlfence.SQLite:
		queries = []string{
			"WITH old AS (SELECT id AS key FROM slips ORDER BY key) UPDATE slips SET status = 'stale' WHERE id IN (SELECT key FROM old)",
			"WITH old AS (SELECT id AS for FROM slips ORDER BY for) UPDATE slips SET status = 'stale' WHERE id IN (SELECT for FROM old)",
			"WITH c AS (SELECT 1 AS [it's]) DELETE FROM slips WHERE 1 <> (SELECT 2 AS [it's])",
			"WITH c AS (SELECT 1 AS [it--]) DELETE FROM slips",
		}
	}
	c.exec(t, "CREATE TABLE slips (id bigint PRIMARY KEY, status varchar(20))")
	c.exec(t, "INSERT INTO slips VALUES (1, 'new'), (2, 'new')")
	if err := c.fence.Advance(mark("slip", 2).In(within(t)), c.db); err != nil {
		t.Fatal(err)
	}
	g := c.openGorm(t, db, gorm.Config{})
	for _, query := range queries {
		err := g.WithContext(sqlfence.Mark{Resource: "slip", Token: 1}.In(within(t))).Exec(query).Error
		wantStale(t, err, sqlfence.StaleError{Resource: "slip", Token: 1, Current: 2})
		if n := c.number(t, "SELECT count(*) FROM slips WHERE status = 'new'"); n != 2 {
			t.Fatalf("%s: a stale holder wrote", query)
		}
		// It is one that writes: else there is nothing to refuse.
		tx, err := db.BeginTx(within(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(query); err != nil {
			t.Errorf("%s: %v", query, err)
		}
		var n int
		if err := tx.QueryRow("SELECT count(*) FROM slips WHERE status = 'new'").Scan(&n); err != nil || n != 0 {
			t.Errorf("%s: %d rows are new without the plugin, %v, want none", query, n, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
}

// otherPool is a pool as other plugins make them.
type otherPool struct{ *sql.DB }

func (p otherPool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	return p.DB.BeginTx(ctx, opts)
}

// testGormParallel guards transactions that others have begun, of a token that the database has not seen.
func (c *cell) testGormParallel(t *testing.T) {
	write := func(tx *gorm.DB) error { return tx.Exec(markPaid, "x", -1).Error }
	begins := func(db *gorm.DB) error { return db.Transaction(write) }
	for name, run := range map[string]func(db *gorm.DB) error{
		"Transaction":             begins,
		"Connection, Transaction": func(db *gorm.DB) error { return db.Connection(begins) },
		"Connection":              func(db *gorm.DB) error { return db.Connection(write) },
	} {
		for what, pool := range map[string]gorm.ConnPool{"": c.db, ", another plugin's pool": otherPool{c.db}} {
			if what != "" && name != "Transaction" {
				continue // gorm takes connections from the *sql.DB
			}
			g := c.openGorm(t, pool, gorm.Config{})
			resource := "gorm parallel " + name + what
			under := func(token int64) *gorm.DB {
				return g.WithContext(sqlfence.Mark{Resource: resource, Token: token, Parallel: true}.In(within(t)))
			}
			for _, token := range []int64{7, 7, 8} {
				if err := run(under(token)); err != nil {
					t.Errorf("%s%s, token %d: %v", name, what, token, err)
				}
			}
			wantStale(t, run(under(7)), sqlfence.StaleError{Resource: resource, Token: 7, Current: 8})
		}
	}
}

// testSavepoint shows what the package's description warns of.
func (c *cell) testSavepoint(t *testing.T, db *gorm.DB) {
	ctx := sqlfence.Mark{Resource: "savepoint", Token: databases.Add(1) + 100}.In(within(t))
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		_ = tx.Transaction(func(nested *gorm.DB) error {
			if err := c.fence.Guard(ctx, nested.Statement.ConnPool.(sqlfence.Tx)); err != nil {
				t.Error(err)
			}
			return errAbort
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.guarded(within(t), "savepoint", 1, nothing); err != nil {
		t.Errorf("the guard outlived its savepoint, the documentation says otherwise: %v", err)
	}
	c.exec(t, "DELETE FROM sqlfence WHERE resource = 'savepoint'")
}
