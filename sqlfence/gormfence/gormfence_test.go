package gormfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/glebarez/sqlite"
	holdfast "github.com/holdfast-go/holdfast/core"
	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/gormfence"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
)

type item struct {
	ID     int64
	Status string
	Parts  []part
}

// row is an item without a hook.
type row struct {
	ID     int64
	Status string
}

func (row) TableName() string { return "items" }

type part struct {
	ID     int64
	ItemID int64
	Name   string
}

type hookKey struct{}

// BeforeSave writes too, or does what the context says.
func (i *item) BeforeSave(tx *gorm.DB) error {
	if do, ok := tx.Statement.Context.Value(hookKey{}).(func()); ok {
		do()
	}
	if i.Status != "hook" {
		return nil
	}
	return tx.Session(&gorm.Session{NewDB: true}).Exec("INSERT INTO log (what) VALUES ('hook')").Error
}

// bench is a gorm.DB with the plugin, and the database below it.
type bench struct {
	db    *gorm.DB
	plain *sql.DB
	fence *sqlfence.Fence
}

func open(t *testing.T, cfg gorm.Config, opts ...gormfence.Option) *bench {
	t.Helper()
	plain := file(t)
	return openWith(t, plain, sqlite.Dialector{Conn: plain}, cfg, opts...)
}

// file is a new database.
func file(t *testing.T) *sql.DB {
	t.Helper()
	dsn := "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(2000)&_pragma=synchronous(0)&_pragma=journal_mode(wal)&_txlock=immediate"
	plain, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	return plain
}

func openWith(t *testing.T, plain *sql.DB, d gorm.Dialector, cfg gorm.Config, opts ...gormfence.Option) *bench {
	t.Helper()
	cfg.Logger = logger.Discard
	db, err := gorm.Open(d, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	fence := tables(t, plain)
	if err := db.Use(gormfence.New(fence, opts...)); err != nil {
		t.Fatal(err)
	}
	return &bench{db, plain, fence}
}

// tables creates the tables of a new database.
func tables(t *testing.T, plain *sql.DB) *sqlfence.Fence {
	t.Helper()
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		fence.DDL(), "CREATE TABLE items (id integer PRIMARY KEY, status text)", "CREATE TABLE log (what text)",
		"CREATE TABLE parts (id integer PRIMARY KEY, item_id integer, name text)",
	} {
		if _, err := plain.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	return fence
}

func (b *bench) number(t *testing.T, query string, args ...any) (n int64) {
	t.Helper()
	if err := b.plain.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (b *bench) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := b.plain.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// within is a context with a token.
func within(t *testing.T, resource string, token int64) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return sqlfence.Mark{Resource: resource, Token: token}.In(ctx)
}

// configs are the ways to open gorm that change who begins a transaction and who runs a statement.
func configs(t *testing.T, test func(t *testing.T, cfg gorm.Config)) {
	for _, prepare := range []bool{false, true} {
		for _, skip := range []bool{false, true} {
			t.Run(fmt.Sprintf("prepare=%t,skip=%t", prepare, skip), func(t *testing.T) {
				test(t, gorm.Config{PrepareStmt: prepare, SkipDefaultTransaction: skip, TranslateError: skip})
			})
		}
	}
}

const update = "UPDATE items SET status = ? WHERE id = ?"

// writes are the ways to write with gorm. Each sets the status of a row, which is there. db has the context.
var writes = []struct {
	name  string
	write func(db *gorm.DB, id int64, status string) error
}{
	{"Save", func(db *gorm.DB, id int64, status string) error { return db.Save(&item{ID: id, Status: status}).Error }},
	{"Update", func(db *gorm.DB, id int64, status string) error {
		return db.Model(&item{ID: id}).Update("status", status).Error
	}},
	{"Updates, returning", func(db *gorm.DB, id int64, status string) error {
		var it item
		err := db.Model(&it).Clauses(clause.Returning{}).Where("id = ?", id).Updates(item{Status: status}).Error
		return returned(err, it.Status, status)
	}},
	{"UpdateColumn", func(db *gorm.DB, id int64, status string) error {
		return db.Model(&item{ID: id}).UpdateColumn("status", status).Error
	}},
	{"Create, on conflict", func(db *gorm.DB, id int64, status string) error {
		return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&item{ID: id, Status: status}).Error
	}},
	{"Delete and Create", func(db *gorm.DB, id int64, status string) error {
		if err := db.Delete(&item{ID: id}).Error; err != nil {
			return err
		}
		return db.Create(&item{ID: id, Status: status}).Error
	}},
	{"CreateInBatches", func(db *gorm.DB, id int64, status string) error {
		items := []item{{ID: id, Status: status}, {Status: status}, {Status: status}}
		return db.Clauses(clause.OnConflict{UpdateAll: true}).CreateInBatches(items, 2).Error
	}},
	{"association", func(db *gorm.DB, id int64, status string) error {
		it := item{ID: id, Status: status, Parts: []part{{Name: status}, {Name: status}}}
		return db.Session(&gorm.Session{FullSaveAssociations: true}).Save(&it).Error
	}},
	{"Association", func(db *gorm.DB, id int64, status string) error {
		if err := db.Model(&item{ID: id}).Association("Parts").Append(&part{Name: status}); err != nil {
			return err
		}
		return db.Exec(update, status, id).Error
	}},
	{"Exec", func(db *gorm.DB, id int64, status string) error { return db.Exec(update, status, id).Error }},
	{"Exec, commented", func(db *gorm.DB, id int64, status string) error {
		return db.Exec("-- SELECT\n"+update, status, id).Error
	}},
	{"Exec, WITH", func(db *gorm.DB, id int64, status string) error {
		return db.Exec("WITH s AS (SELECT ? AS s) UPDATE items SET status = (SELECT s FROM s) WHERE id = ?", status, id).Error
	}},
	{"Raw, Find", func(db *gorm.DB, id int64, status string) error {
		var it item
		err := db.Raw(update+" RETURNING *", status, id).Find(&it).Error
		return returned(err, it.Status, status)
	}},
	{"Raw, First", func(db *gorm.DB, id int64, status string) error {
		var it item
		err := db.Raw(update+" RETURNING *", status, id).First(&it).Error
		return returned(err, it.Status, status)
	}},
	{"NewDB", func(db *gorm.DB, id int64, status string) error {
		return db.Session(&gorm.Session{NewDB: true}).Model(&item{ID: id}).Update("status", status).Error
	}},
	{"session PrepareStmt", func(db *gorm.DB, id int64, status string) error {
		return db.Session(&gorm.Session{PrepareStmt: true}).Exec(update, status, id).Error
	}},
	{"session PrepareStmt, Transaction", func(db *gorm.DB, id int64, status string) error {
		return db.Session(&gorm.Session{PrepareStmt: true}).Transaction(func(tx *gorm.DB) error { return tx.Exec(update, status, id).Error })
	}},
	{"Transaction, session PrepareStmt", func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			return tx.Session(&gorm.Session{PrepareStmt: true}).Exec(update, status, id).Error
		})
	}},
	{"session SkipDefaultTransaction", func(db *gorm.DB, id int64, status string) error {
		return db.Session(&gorm.Session{SkipDefaultTransaction: true}).Save(&item{ID: id, Status: status}).Error
	}},
	{"generics", func(db *gorm.DB, id int64, status string) error {
		_, err := gorm.G[row](db).Where("id = ?", id).Update(db.Statement.Context, "status", status)
		return err
	}},
	{"generics, Exec", func(db *gorm.DB, id int64, status string) error {
		return gorm.G[row](db).Exec(db.Statement.Context, update, status, id)
	}},
	{"nested", func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			if err := tx.Exec(update, "outer", id).Error; err != nil {
				return err
			}
			aborted := errors.New("aborted")
			err := tx.Transaction(func(tx *gorm.DB) error {
				if err := tx.Exec(update, "inner", id).Error; err != nil {
					return err
				}
				return aborted
			})
			if err != aborted {
				return err
			}
			return tx.Exec("UPDATE items SET status = ? WHERE id = ? AND status = 'outer'", status, id).Error
		})
	}},
	{"nested, disabled", func(db *gorm.DB, id int64, status string) error {
		return db.Session(&gorm.Session{DisableNestedTransaction: true}).Transaction(func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error { return tx.Exec(update, status, id).Error })
		})
	}},
	{"SavePoint", func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			tx.SavePoint("mine")
			if err := tx.Exec(update, "undone", id).Error; err != nil {
				return err
			}
			tx.RollbackTo("mine")
			return tx.Exec(update, status, id).Error
		})
	}},
	{"Begin", func(db *gorm.DB, id int64, status string) error {
		tx := db.Begin()
		defer tx.Rollback()
		if err := tx.Error; err != nil {
			return err
		}
		if err := tx.Save(&item{ID: id, Status: status}).Error; err != nil {
			return err
		}
		return tx.Commit().Error
	}},
	{"Begin, late look", func(db *gorm.DB, id int64, status string) error {
		tx := db.Begin()
		defer tx.Rollback()
		if err := tx.Exec(update, status, id).Error; err != nil { // Begin's among them
			return err
		}
		return tx.Commit().Error
	}},
	{"Transaction, by the ConnPool", func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			_, err := tx.Statement.ConnPool.(sqlfence.Tx).ExecContext(tx.Statement.Context, update, status, id)
			return err
		})
	}},
	{"Transaction, Scan", func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			var got string
			err := tx.Raw(update+" RETURNING status", status, id).Scan(&got).Error
			return returned(err, got, status)
		})
	}},
	{"Transaction, Row", func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			var got string
			err := tx.Raw(update+" RETURNING status", status, id).Row().Scan(&got)
			return returned(err, got, status)
		})
	}},
	{"Transaction, Rows", func(db *gorm.DB, id int64, status string) error {
		return db.Transaction(func(tx *gorm.DB) error {
			rows, err := tx.Raw(update+" RETURNING *", status, id).Rows()
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
			return returned(rows.Err(), it.Status, status)
		})
	}},
	{"Connection", func(db *gorm.DB, id int64, status string) error {
		return db.Connection(func(conn *gorm.DB) error { return conn.Save(&item{ID: id, Status: status}).Error })
	}},
	{"Connection, Exec", func(db *gorm.DB, id int64, status string) error {
		return db.Connection(func(conn *gorm.DB) error { return conn.Exec(update, status, id).Error })
	}},
	{"Connection, Transaction", func(db *gorm.DB, id int64, status string) error {
		return db.Connection(func(conn *gorm.DB) error {
			return conn.Transaction(func(tx *gorm.DB) error { return tx.Save(&item{ID: id, Status: status}).Error })
		})
	}},
	{"Connection, Transaction, Scan", func(db *gorm.DB, id int64, status string) error {
		return db.Connection(func(conn *gorm.DB) error {
			return conn.Transaction(func(tx *gorm.DB) error {
				var got string
				err := tx.Raw(update+" RETURNING status", status, id).Scan(&got).Error
				return returned(err, got, status)
			})
		})
	}},
	{"its own sql.Tx", func(db *gorm.DB, id int64, status string) error {
		pool, err := db.DB()
		if err != nil {
			return err
		}
		began, err := pool.Begin()
		if err != nil {
			return err
		}
		defer began.Rollback()
		tx := db.Session(&gorm.Session{Context: db.Statement.Context})
		tx.Statement.ConnPool = began
		if err := tx.Save(&item{ID: id, Status: status}).Error; err != nil {
			return err
		}
		return began.Commit()
	}},
}

func returned(err error, got, want string) error {
	if err == nil && got != want {
		err = fmt.Errorf("returned %q, want %q", got, want)
	}
	return err
}

func TestLateWritesAreRefused(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		for i, tt := range writes {
			t.Run(tt.name, func(t *testing.T) {
				id, resource := int64(i+1)*1000, fmt.Sprintf("item:%d", i)
				b.exec(t, "INSERT INTO items (id, status) VALUES (?, 'new')", id)
				// Without a lock first: what gorm has prepared then is not used past the guard.
				for token, want := range []string{"free", "7", "7", "8"} {
					ctx := t.Context()
					if want != "free" {
						ctx = within(t, resource, int64(want[0]-'0'))
					}
					if err := tt.write(b.db.WithContext(ctx), id, want); err != nil {
						t.Fatalf("write %d, %s: %v", token, want, err)
					}
					if got := b.number(t, "SELECT count(*) FROM items WHERE id = ? AND status = ?", id, want); got != 1 {
						t.Fatalf("what %s wrote is not there", want)
					}
				}
				if got, err := b.fence.Current(t.Context(), b.plain, resource); got != 8 || err != nil {
					t.Errorf("the database has token %d, %v, want 8", got, err)
				}
				before := b.number(t, "SELECT (SELECT count(*) FROM items) + (SELECT count(*) FROM parts)")
				err := tt.write(b.db.WithContext(within(t, resource, 7)), id, "stale")
				if !errors.Is(err, sqlfence.ErrStale) || !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("got %v, want %v", err, sqlfence.ErrStale)
				}
				if got := b.number(t, "SELECT count(*) FROM items WHERE id = ? AND status = '8'", id); got != 1 {
					t.Error("the row has changed")
				}
				if got := b.number(t, "SELECT (SELECT count(*) FROM items) + (SELECT count(*) FROM parts)"); got != before {
					t.Errorf("got %d rows, want the %d of before", got, before)
				}
				if open := b.plain.Stats().InUse; open != 0 {
					t.Errorf("%d connections are in use", open)
				}
			})
		}
	})
}

// A transaction is guarded before what it reads.
func TestTheGuardIsFirst(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		ctx := within(t, "first", 7)
		err := b.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			var token int64
			err := tx.Raw("SELECT token FROM sqlfence WHERE resource = 'first'").Scan(&token).Error
			if err == nil && token != 7 {
				t.Errorf("the first statement sees token %d, want 7", token)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		stale := b.db.WithContext(within(t, "first", 6))
		if err := stale.Transaction(func(*gorm.DB) error { t.Error("fn runs"); return nil }); !errors.Is(err, sqlfence.ErrStale) {
			t.Errorf("got %v, want %v", err, sqlfence.ErrStale)
		}
		tx := stale.Begin()
		if !errors.Is(tx.Error, sqlfence.ErrStale) {
			t.Errorf("Begin: got %v, want %v", tx.Error, sqlfence.ErrStale)
		}
		if tx.Rollback(); !cfg.PrepareStmt && !errors.Is(tx.Error, sqlfence.ErrStale) {
			t.Errorf("Begin and Rollback: got %v, want %v", tx.Error, sqlfence.ErrStale)
		}
	})
}

func TestReadsPass(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg, gormfence.WithLockRequired())
		b.exec(t, "INSERT INTO items (id, status) VALUES (1, 'new')")
		b.exec(t, "INSERT INTO sqlfence VALUES ('reads', 8)")
		// Even a stale holder reads: nothing is guarded.
		for name, ctx := range map[string]context.Context{"free": t.Context(), "stale": within(t, "reads", 7)} {
			db := b.db.WithContext(ctx)
			var it item
			var status string
			var n int64
			errs := map[string]error{
				"First":     db.First(&it, 1).Error,
				"Preload":   db.Preload("Parts").First(&it, 1).Error,
				"Raw, Scan": db.Raw("SELECT status FROM items").Scan(&status).Error,
				"Raw, WITH": db.Raw("WITH x AS (SELECT * FROM items) SELECT status FROM x").Scan(&status).Error,
				"Row":       db.Model(&item{}).Select("status").Row().Scan(&status),
				"Count":     db.Model(&item{}).Count(&n).Error,
				"Pluck":     db.Model(&item{}).Pluck("status", &status).Error,
				"Exec":      db.Exec("SELECT 1").Error,
				"DryRun":    db.Session(&gorm.Session{DryRun: true, SkipDefaultTransaction: true}).Create(&item{}).Error,
				"Rows": func() error {
					rows, err := db.Model(&item{}).Rows()
					if err == nil {
						err = rows.Close()
					}
					return err
				}(),
			}
			errs["nested"] = b.db.Transaction(func(tx *gorm.DB) error {
				_ = tx.Transaction(func(tx *gorm.DB) error { return errors.New("aborted") })
				return tx.First(&it, 1).Error
			})
			errs["read-only"] = db.Transaction(func(tx *gorm.DB) error { return tx.First(&it, 1).Error }, &sql.TxOptions{ReadOnly: true})
			for what, err := range errs {
				if err != nil {
					t.Errorf("%s, %s: %v", name, what, err)
				}
			}
			if it.Status != "new" || status != "new" || n != 1 {
				t.Errorf("%s: read %+v, %s and %d", name, it, status, n)
			}
		}
	})
}

func TestUnguardedWritesAreRefused(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		b.exec(t, "INSERT INTO items (id, status) VALUES (1, 'new')")
		db, a := b.db.WithContext(t.Context()), within(t, "a", 7)
		const write = "UPDATE items SET status = 'x' RETURNING status"
		raws := map[string]func(db *gorm.DB) error{
			"Scan": func(db *gorm.DB) error { var s string; return db.Raw(write).Scan(&s).Error },
			"Row":  func(db *gorm.DB) error { var s string; return db.Raw(write).Row().Scan(&s) },
			"Rows": func(db *gorm.DB) error { _, err := db.Raw(write).Rows(); return err },
			"Row, WITH": func(db *gorm.DB) error {
				return db.Raw("WITH x AS (SELECT 1) " + write).Row().Err()
			},
			"in a transaction without the lock": func(db *gorm.DB) error {
				return b.db.Transaction(func(tx *gorm.DB) error { return tx.WithContext(db.Statement.Context).Save(&item{ID: 1}).Error })
			},
			"Exec in a transaction without the lock": func(db *gorm.DB) error {
				return b.db.Transaction(func(tx *gorm.DB) error { return tx.WithContext(db.Statement.Context).Exec(write).Error })
			},
			"Scan in a transaction without the lock": func(db *gorm.DB) error {
				return b.db.Transaction(func(tx *gorm.DB) error {
					var s string
					return tx.WithContext(db.Statement.Context).Raw(write).Scan(&s).Error
				})
			},
			"in a transaction of another lock": func(db *gorm.DB) error {
				return b.db.WithContext(within(t, "b", 7)).Transaction(func(tx *gorm.DB) error {
					return tx.WithContext(db.Statement.Context).Save(&item{ID: 1}).Error
				})
			},
			"in a transaction of another token": func(db *gorm.DB) error {
				return b.db.WithContext(within(t, "a", 6)).Transaction(func(tx *gorm.DB) error {
					return tx.WithContext(db.Statement.Context).Save(&item{ID: 1}).Error
				})
			},
			"in a read-only transaction": func(db *gorm.DB) error {
				return db.Transaction(func(tx *gorm.DB) error { return tx.Save(&item{ID: 1}).Error }, &sql.TxOptions{ReadOnly: true})
			},
		}
		for what, write := range raws {
			if err := write(db.WithContext(a)); !errors.Is(err, gormfence.ErrUnguarded) {
				t.Errorf("%s: got %v, want %v", what, err, gormfence.ErrUnguarded)
			}
			if got := b.number(t, "SELECT count(*) FROM items WHERE status = 'new'"); got != 1 {
				t.Fatalf("%s: it was written", what)
			}
		}
		// All that a guarded transaction has is guarded, whatever the statement's context.
		err := b.db.WithContext(a).Transaction(func(tx *gorm.DB) error {
			return tx.WithContext(t.Context()).Exec(update, "y", 1).Error
		})
		if err != nil {
			t.Error(err)
		}
		if open := b.plain.Stats().InUse; open != 0 {
			t.Errorf("%d connections are in use", open)
		}
	})
}

func TestLockRequired(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg, gormfence.WithLockRequired())
		b.exec(t, "INSERT INTO items (id, status) VALUES (1, 'new')")
		for _, tt := range writes {
			if tt.name == "Transaction, by the ConnPool" {
				continue // goes past the callbacks
			}
			err := tt.write(b.db.WithContext(t.Context()), 1, "free")
			if !errors.Is(err, gormfence.ErrUnguarded) || !errors.Is(err, sqlfence.ErrNoToken) {
				t.Errorf("%s without a lock: got %v, want %v", tt.name, err, gormfence.ErrUnguarded)
			}
			if got := b.number(t, "SELECT count(*) FROM items WHERE status = 'new'"); got != 1 {
				t.Fatalf("%s without a lock: it was written", tt.name)
			}
		}
		err := b.db.WithContext(within(t, "r", 7)).Transaction(func(tx *gorm.DB) error {
			return tx.WithContext(t.Context()).Exec(update, "guarded", 1).Error
		})
		if err != nil {
			t.Errorf("in a guarded transaction: %v", err)
		}
		if err := b.db.Exec("CREATE TABLE t (n int)").Error; !errors.Is(err, gormfence.ErrUnguarded) {
			t.Errorf("DDL: got %v, want %v", err, gormfence.ErrUnguarded)
		}
		without, err := gorm.Open(sqlite.Dialector{Conn: b.plain}, &gorm.Config{Logger: logger.Discard})
		if err == nil {
			err = without.AutoMigrate(&item{}, &part{})
		}
		if err != nil {
			t.Errorf("a migration by another gorm.DB: %v", err)
		}
	})
}

// What a hook writes is part of the statement's transaction, also where gorm would have none.
func TestHooksAreGuarded(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		if err := b.db.WithContext(within(t, "hook", 8)).Create(&item{ID: 1, Status: "hook"}).Error; err != nil {
			t.Fatal(err)
		}
		if got := b.number(t, "SELECT count(*) FROM log"); got != 1 {
			t.Errorf("the hook wrote %d rows, want 1", got)
		}
		if err := b.db.WithContext(within(t, "hook", 7)).Create(&item{ID: 2, Status: "hook"}).Error; !errors.Is(err, sqlfence.ErrStale) {
			t.Errorf("got %v, want %v", err, sqlfence.ErrStale)
		}
		// The statement fails behind the hook, which is undone.
		if err := b.db.WithContext(within(t, "hook", 8)).Create(&item{ID: 1, Status: "hook"}).Error; err == nil {
			t.Error("a second row of one id")
		}
		if got := b.number(t, "SELECT count(*) FROM log"); got != 1 {
			t.Errorf("got %d rows of hooks, want 1", got)
		}
	})
}

// A lock that is over before COMMIT: the transaction is rolled back, whatever its context says.
func TestLocksAreLookedAtBeforeCommit(t *testing.T) {
	locker := newLocker(t)
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		for name, run := range map[string]func(db *gorm.DB, release func()) error{
			"Transaction": func(db *gorm.DB, release func()) error {
				return db.Transaction(func(tx *gorm.DB) error {
					err := tx.Create(&item{Status: "late"}).Error
					release()
					return err
				})
			},
			"Begin": func(db *gorm.DB, release func()) error {
				tx := db.Begin()
				if err := tx.Create(&item{Status: "late"}).Error; err != nil {
					return err
				}
				release()
				return tx.Commit().Error
			},
			"over before": func(db *gorm.DB, release func()) error {
				release()
				return db.Create(&item{Status: "late"}).Error
			},
			"over before Begin": func(db *gorm.DB, release func()) error {
				release()
				return db.Transaction(func(tx *gorm.DB) error { t.Error("fn runs"); return nil })
			},
		} {
			lock, err := locker.Acquire(t.Context(), "look")
			if err != nil {
				t.Fatal(err)
			}
			// Behind WithoutCancel nothing but the look finds out.
			ctx := context.WithoutCancel(lock.Context(t.Context()))
			if err := b.db.WithContext(ctx).Create(&item{Status: "in time"}).Error; err != nil {
				t.Fatal(err)
			}
			err = run(b.db.WithContext(ctx), func() {
				if err := lock.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			if !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("%s: got %v, want %v", name, err, holdfast.ErrLost)
			}
			if got := b.number(t, "SELECT count(*) FROM items WHERE status = 'late'"); got != 0 {
				t.Errorf("%s: it was committed", name)
			}
			if open := b.plain.Stats().InUse; open != 0 {
				t.Fatalf("%s: %d connections are in use", name, open)
			}
		}
	})
}

// A lock that goes while a statement runs: the driver speaks of the context alone.
func TestLossWithinAStatement(t *testing.T) {
	locker := newLocker(t)
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		lock, err := locker.Acquire(t.Context(), "within")
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.WithValue(lock.Context(t.Context()), hookKey{}, func() {
			if err := lock.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
		if err := b.db.WithContext(ctx).Create(&item{Status: "late"}).Error; !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("got %v, want %v", err, holdfast.ErrLost)
		}
		if got := b.number(t, "SELECT count(*) FROM items"); got != 0 {
			t.Error("it was committed")
		}
	})
}

// What the documentation says of a panic.
func TestAPanicEndsWithTheContext(t *testing.T) {
	b := open(t, gorm.Config{})
	ctx, cancel := context.WithCancel(within(t, "panic", 7))
	defer cancel()
	func() {
		defer func() { _ = recover() }()
		hook := context.WithValue(ctx, hookKey{}, func() { panic("the hook") })
		_ = b.db.WithContext(hook).Create(&item{Status: "late"})
		t.Error("no panic")
	}()
	cancel()
	if err := b.db.WithContext(within(t, "panic", 8)).Create(&item{Status: "next"}).Error; err != nil {
		t.Error(err)
	}
	if got := b.number(t, "SELECT count(*) FROM items WHERE status = 'late'"); got != 0 {
		t.Error("it was committed")
	}
	err := b.db.WithContext(within(t, "panic", 8)).Transaction(func(tx *gorm.DB) error {
		defer func() { _ = recover() }()
		return tx.Transaction(func(*gorm.DB) error { panic("the function") })
	})
	if err != nil {
		t.Error(err)
	}
}

// gorm lets a statement be used again, and the second use does not find what was left of the first.
func TestAStatementIsUsedAgain(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		db := b.db.WithContext(within(t, "again", 7)).Table("items")
		for _, query := range []string{
			"INSERT INTO items (id) VALUES (1)", "INSERT INTO items (id) VALUES (2)", "SELECT 1", "INSERT INTO items (id) VALUES (3)",
		} {
			if err := db.Exec(query).Error; err != nil {
				t.Errorf("%s: %v", query, err)
			}
		}
		if got := b.number(t, "SELECT count(*) FROM items"); got != 3 {
			t.Errorf("got %d rows, want 3", got)
		}
	})
}

// beginner is a pool as other plugins make them.
type beginner struct {
	*sql.DB
	begun int
	tx    func(*sql.Tx) gorm.ConnPool
}

func (b *beginner) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := b.DB.BeginTx(ctx, opts)
	b.begun++
	return b.tx(tx), err
}

func (b *beginner) GetDBConn() (*sql.DB, error) { return b.DB, nil }

// noTx can be neither committed nor asked for a statement.
type noTx struct{ gorm.ConnPool }

func TestPoolsOfOtherPlugins(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		plain := open(t, gorm.Config{}).plain
		pool := &beginner{DB: plain, tx: func(tx *sql.Tx) gorm.ConnPool { return tx }}
		cfg.Logger = logger.Discard
		db, err := gorm.Open(sqlite.Dialector{Conn: pool}, &cfg)
		if err != nil {
			t.Fatal(err)
		}
		fence, err := sqlfence.New(sqlfence.SQLite)
		if err == nil {
			err = db.Use(gormfence.New(fence))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []int64{7, 8} {
			if err := db.WithContext(within(t, "other", token)).Create(&item{ID: token}).Error; err != nil {
				t.Fatal(err)
			}
		}
		stale := db.WithContext(within(t, "other", 7))
		for what, err := range map[string]error{
			"Create":      stale.Create(&item{}).Error,
			"Transaction": stale.Transaction(func(*gorm.DB) error { t.Error("fn runs"); return nil }),
		} {
			if !errors.Is(err, sqlfence.ErrStale) {
				t.Errorf("%s: got %v, want %v", what, err, sqlfence.ErrStale)
			}
		}
		if pool.begun != 4 {
			t.Errorf("the pool began %d transactions, want 4", pool.begun)
		}
		pool.tx = func(tx *sql.Tx) gorm.ConnPool { _ = tx.Rollback(); return noTx{plain} }
		if err := db.WithContext(within(t, "other", 9)).Create(&item{}).Error; !errors.Is(err, gorm.ErrInvalidTransaction) {
			t.Errorf("with transactions that are none: got %v, want %v", err, gorm.ErrInvalidTransaction)
		}
	})
}

func newLocker(t *testing.T) *holdfast.Locker {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	locker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locker.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		_ = rdb.Close()
	})
	return locker
}

// A lock with a limit does not fence.
func TestSharedLocks(t *testing.T) {
	locker := newLocker(t)
	configs(t, func(t *testing.T, cfg gorm.Config) {
		lock, err := locker.Acquire(t.Context(), "shared", holdfast.WithLimit(2))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Release(t.Context())
		ctx := lock.Context(t.Context())
		refusing, passing := open(t, cfg), open(t, cfg, gormfence.WithUnfenced(), gormfence.WithLockRequired())
		passing.exec(t, "INSERT INTO sqlfence VALUES ('r', 8)")
		for i, tt := range writes {
			id := int64(i+1) * 1000
			for _, b := range []*bench{refusing, passing} {
				b.exec(t, "INSERT INTO items (id, status) VALUES (?, 'new')", id)
			}
			if err := tt.write(refusing.db.WithContext(ctx), id, "x"); !errors.Is(err, sqlfence.ErrNoToken) {
				t.Errorf("%s: got %v, want %v", tt.name, err, sqlfence.ErrNoToken)
			}
			if got := refusing.number(t, "SELECT count(*) FROM items WHERE status <> 'new'"); got != 0 {
				t.Fatalf("%s: it was written", tt.name)
			}
			if err := tt.write(passing.db.WithContext(ctx), id, "x"); err != nil {
				t.Errorf("%s with WithUnfenced: %v", tt.name, err)
			}
			// The other locks of the context fence as ever.
			if err := tt.write(passing.db.WithContext(sqlfence.Mark{Resource: "r", Token: 7}.In(ctx)), id, "y"); !errors.Is(err, sqlfence.ErrStale) {
				t.Errorf("%s with WithUnfenced and a stale token: got %v, want %v", tt.name, err, sqlfence.ErrStale)
			}
		}
	})
}

// gorm's own finds its pool and its transactions where it looks for them.
func TestGormFindsItsOwn(t *testing.T) {
	configs(t, func(t *testing.T, cfg gorm.Config) {
		b := open(t, cfg)
		db := b.db.WithContext(within(t, "own", 7))
		if _, ok := db.Statement.ConnPool.(sqlfence.Tx); ok {
			t.Error("the pool is taken for a transaction")
		}
		if got, err := db.DB(); got != b.plain || err != nil {
			t.Errorf("DB: got %p, %v, want %p", got, err, b.plain)
		}
		err := db.Transaction(func(tx *gorm.DB) error {
			if got, err := tx.DB(); got != b.plain || err != nil {
				t.Errorf("DB in a transaction: got %p, %v, want %p", got, err, b.plain)
			}
			// As programs have it that guarded by hand before.
			return b.fence.Guard(tx.Statement.Context, tx.Statement.ConnPool.(sqlfence.Tx))
		})
		if err != nil {
			t.Error(err)
		}
		if _, ok := db.ConnPool.(*gorm.PreparedStmtDB); ok != cfg.PrepareStmt {
			t.Errorf("the pool is of gorm's prepared statements: %t, want %t", ok, cfg.PrepareStmt)
		}
		if got := db.Migrator().CurrentDatabase(); got != "main" {
			t.Errorf("got database %q, want main", got)
		}
		type fresh struct{ ID, N int64 }
		if err := errors.Join(db.AutoMigrate(&fresh{}), db.Create(&fresh{ID: 1}).Error, db.Migrator().DropTable(&fresh{})); err != nil {
			t.Errorf("a migration under a lock: %v", err)
		}
		if err := b.db.Use(gormfence.New(b.fence)); !errors.Is(err, gorm.ErrRegistered) {
			t.Errorf("a second time: got %v, want %v", err, gorm.ErrRegistered)
		}
	})
}

func TestUseRefuses(t *testing.T) {
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	defer tx.Rollback()
	for what, err := range map[string]error{
		"nil fence":        db.Use(gormfence.New(nil)),
		"nil option":       db.Use(gormfence.New(fence, nil)),
		"in a transaction": tx.Use(gormfence.New(fence)),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if err := db.Use(gormfence.New(fence)); err != nil {
		t.Error(err)
	}
}

// A transaction is guarded by a lock, in parallel or not, whichever of the two the statement's context says.
func TestParallel(t *testing.T) {
	b := open(t, gorm.Config{})
	one := sqlfence.Mark{Resource: "item:1", Token: 7}.In(t.Context())
	beside := sqlfence.Mark{Resource: "item:1", Token: 7, Parallel: true}.In(one)
	for i, ctxs := range [][2]context.Context{{one, beside}, {beside, one}, {beside, beside}} {
		err := b.db.WithContext(ctxs[0]).Transaction(func(tx *gorm.DB) error {
			return tx.WithContext(ctxs[1]).Create(&item{Status: "new"}).Error
		})
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	late := sqlfence.Mark{Resource: "item:1", Token: 6, Parallel: true}.In(t.Context())
	if err := b.db.WithContext(late).Create(&item{Status: "late"}).Error; !errors.Is(err, sqlfence.ErrStale) {
		t.Errorf("got %v, want %v", err, sqlfence.ErrStale)
	}
	if n := b.number(t, "SELECT count(*) FROM items"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}
