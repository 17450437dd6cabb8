package gormfence_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/gormfence"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"
)

// sites are the databases of one gorm.DB with dbresolver: home is what gorm has open.
type sites struct {
	db   *gorm.DB
	home *bench
	all  map[string]*bench
	pick int // the source that the policy of several chooses
}

var siteNames = []string{"home", "source", "other", "replica"}

// register configures dbresolver. on is how gorm opens sites.
type register func(s *sites, on func(names ...string) []gorm.Dialector) *dbresolver.DBResolver

func sourceAndReplica(_ *sites, on func(...string) []gorm.Dialector) *dbresolver.DBResolver {
	return dbresolver.Register(dbresolver.Config{Sources: on("source"), Replicas: on("replica")})
}

// resolved opens gorm with dbresolver, and the plugin before or after it, or not at all if when is empty.
func resolved(t *testing.T, cfg gorm.Config, when string, register register, opts ...gormfence.Option) *sites {
	t.Helper()
	s := &sites{all: map[string]*bench{}}
	for _, name := range siteNames {
		plain := file(t)
		s.all[name] = &bench{plain: plain, fence: tables(t, plain)}
	}
	s.home = s.all["home"]
	on := func(names ...string) (dialectors []gorm.Dialector) {
		for _, name := range names {
			dialectors = append(dialectors, sqlite.Dialector{Conn: s.all[name].plain})
		}
		return dialectors
	}
	cfg.Logger = logger.Discard
	db, err := gorm.Open(on("home")[0], &cfg)
	if err != nil {
		t.Fatal(err)
	}
	resolver, plugin := gorm.Plugin(register(s, on)), gormfence.New(s.home.fence, opts...)
	for _, p := range map[string][]gorm.Plugin{"": {resolver}, "before": {plugin, resolver}, "after": {resolver, plugin}}[when] {
		if err := db.Use(p); err != nil {
			t.Fatal(err)
		}
	}
	s.db = db
	return s
}

// inEitherOrder runs a test with the plugin used before dbresolver, and after it. SkipDefaultTransaction moves the callbacks,
// and PrepareStmt the pools: neither depends on the other.
func inEitherOrder(t *testing.T, test func(t *testing.T, cfg gorm.Config, when string)) {
	for _, when := range []string{"before", "after"} {
		for _, both := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,prepare,skip=%t", when, both), func(t *testing.T) {
				test(t, gorm.Config{PrepareStmt: both, SkipDefaultTransaction: both}, when)
			})
		}
	}
}

// insert puts a new row into each site.
func (s *sites) insert(t *testing.T, id int64) {
	t.Helper()
	for _, b := range s.all {
		b.exec(t, "INSERT INTO items (id, status) VALUES (?, 'new')", id)
	}
}

// have names the sites whose row has the status.
func (s *sites) have(t *testing.T, id int64, status string) (names []string) {
	t.Helper()
	for _, name := range siteNames {
		if s.all[name].number(t, "SELECT count(*) FROM items WHERE id = ? AND status = ?", id, status) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// tokens are those that the sites have seen.
func (s *sites) tokens(t *testing.T, resource string) map[string]int64 {
	t.Helper()
	tokens := map[string]int64{}
	for name, b := range s.all {
		token, err := b.fence.Current(t.Context(), b.plain, resource)
		if err != nil {
			t.Fatal(err)
		}
		if token > 0 {
			tokens[name] = token
		}
	}
	return tokens
}

// refuses has one write after the other, and then a late one. Where the writes are, the guard must be.
func (s *sites) refuses(t *testing.T, id int64, where []string, write func(db *gorm.DB, id int64, status string) error) {
	t.Helper()
	resource := fmt.Sprintf("item:%d", id)
	s.insert(t, id)
	for _, status := range []string{"free", "7", "7", "8"} { // without a lock, and with a token
		ctx := t.Context()
		if status != "free" {
			ctx = within(t, resource, int64(status[0]-'0'))
		}
		if err := write(s.db.WithContext(ctx), id, status); err != nil {
			t.Fatalf("%s: %v", status, err)
		}
		if got := s.have(t, id, status); !slices.Equal(got, where) {
			t.Fatalf("%s is in %v, want %v", status, got, where)
		}
	}
	want := map[string]int64{}
	for _, name := range where {
		want[name] = 8
	}
	if got := s.tokens(t, resource); !maps.Equal(got, want) {
		t.Errorf("the guards are %v, want %v", got, want)
	}
	if err := write(s.db.WithContext(within(t, resource, 7)), id, "stale"); !errors.Is(err, sqlfence.ErrStale) {
		t.Errorf("got %v, want %v", err, sqlfence.ErrStale)
	}
	if got := s.have(t, id, "8"); !slices.Equal(got, where) {
		t.Errorf("a late write has replaced what %v had: it is in %v", where, got)
	}
	for name, b := range s.all {
		if n := b.plain.Stats().InUse; n != 0 {
			t.Errorf("%s: %d connections are in use", name, n)
		}
	}
}

// Each write is guarded in the database to which dbresolver sends it, which is that without the plugin.
func TestTheGuardIsWhereDbresolverWrites(t *testing.T) {
	inEitherOrder(t, func(t *testing.T, cfg gorm.Config, when string) {
		s, without := resolved(t, cfg, when, sourceAndReplica), resolved(t, cfg, "", sourceAndReplica)
		for i, tt := range writes {
			t.Run(tt.name, func(t *testing.T) {
				id := int64(i+1) * 1000
				without.insert(t, id)
				if err := tt.write(without.db.WithContext(t.Context()), id, "x"); err != nil {
					t.Skipf("dbresolver alone: %v", err)
				}
				s.refuses(t, id, without.have(t, id, "x"), tt.write)
			})
		}
	})
}

func TestDbresolversClauses(t *testing.T) {
	configure := func(s *sites, on func(...string) []gorm.Dialector) *dbresolver.DBResolver {
		return dbresolver.Register(dbresolver.Config{Sources: on("source")}).
			Register(dbresolver.Config{Sources: on("other"), Replicas: on("replica")}, "archive", &part{})
	}
	archive := dbresolver.Use("archive")
	inEitherOrder(t, func(t *testing.T, cfg gorm.Config, when string) {
		s := resolved(t, cfg, when, configure)
		id := int64(0)
		for name, tt := range map[string]struct {
			where string
			write func(db *gorm.DB, id int64, status string) error
		}{
			"no clause": {"source", func(db *gorm.DB, id int64, status string) error {
				return db.Save(&item{ID: id, Status: status}).Error
			}},
			"Use": {"other", func(db *gorm.DB, id int64, status string) error {
				return db.Clauses(archive).Save(&item{ID: id, Status: status}).Error
			}},
			"Use, Exec": {"other", func(db *gorm.DB, id int64, status string) error {
				return db.Clauses(archive).Exec(update, status, id).Error
			}},
			"Use, Raw": {"other", func(db *gorm.DB, id int64, status string) error {
				var it item
				err := db.Clauses(archive).Raw(update+" RETURNING *", status, id).Find(&it).Error
				return returned(err, it.Status, status)
			}},
			"Read": {"replica", func(db *gorm.DB, id int64, status string) error {
				return db.Clauses(archive, dbresolver.Read).Exec(update, status, id).Error
			}},
			"Transaction": {"home", func(db *gorm.DB, id int64, status string) error {
				return db.Transaction(func(tx *gorm.DB) error { return tx.Clauses(archive).Exec(update, status, id).Error })
			}},
			"Write, Transaction": {"source", func(db *gorm.DB, id int64, status string) error {
				return db.Clauses(dbresolver.Write).Transaction(func(tx *gorm.DB) error { return tx.Save(&item{ID: id, Status: status}).Error })
			}},
			"Use, Write, Transaction": {"other", func(db *gorm.DB, id int64, status string) error {
				return db.Clauses(archive, dbresolver.Write).Transaction(func(tx *gorm.DB) error {
					var it item
					if err := tx.First(&it, id).Error; err != nil {
						return err
					}
					return tx.Exec(update, status, id).Error
				})
			}},
			"Use, Write, Begin, Row": {"other", func(db *gorm.DB, id int64, status string) error {
				tx := db.Clauses(archive, dbresolver.Write).Begin()
				defer tx.Rollback()
				if tx.Error != nil {
					return tx.Error
				}
				var got string
				if err := returned(tx.Raw(update+" RETURNING status", status, id).Row().Scan(&got), got, status); err != nil {
					return err
				}
				return tx.Commit().Error
			}},
		} {
			id++
			t.Run(name, func(t *testing.T) { s.refuses(t, id, []string{tt.where}, tt.write) })
		}

		// By the table, and what the statement writes beside its own table is in the same database.
		for what, write := range map[string]func(db *gorm.DB) error{
			"other":  func(db *gorm.DB) error { return db.Create(&part{Name: "x"}).Error },
			"source": func(db *gorm.DB) error { return db.Create(&item{Status: "hook", Parts: []part{{Name: "x"}}}).Error },
		} {
			if err := write(s.db.WithContext(within(t, what, 8))); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if err := write(s.db.WithContext(within(t, what, 7))); !errors.Is(err, sqlfence.ErrStale) {
				t.Errorf("%s: got %v, want %v", what, err, sqlfence.ErrStale)
			}
			if got, want := s.tokens(t, what), map[string]int64{what: 8}; !maps.Equal(got, want) {
				t.Errorf("the guards are %v, want %v", got, want)
			}
			if n := s.all[what].number(t, "SELECT count(*) FROM parts"); n != 1 {
				t.Errorf("%s has %d parts, want 1", what, n)
			}
		}
	})
}

// Of several sources each has what its policy sends there, guard included.
func TestSeveralSources(t *testing.T) {
	configure := func(s *sites, on func(...string) []gorm.Dialector) *dbresolver.DBResolver {
		policy := dbresolver.PolicyFunc(func(pools []gorm.ConnPool) gorm.ConnPool { return pools[s.pick] })
		return dbresolver.Register(dbresolver.Config{Sources: on("source", "other"), Policy: policy})
	}
	inEitherOrder(t, func(t *testing.T, cfg gorm.Config, when string) {
		s := resolved(t, cfg, when, configure)
		for pick, name := range []string{"source", "other"} {
			s.pick = pick
			for i, write := range []func(db *gorm.DB, id int64, status string) error{
				func(db *gorm.DB, id int64, status string) error { return db.Save(&item{ID: id, Status: status}).Error },
				func(db *gorm.DB, id int64, status string) error { return db.Exec(update, status, id).Error },
			} {
				s.refuses(t, int64(10*pick+i+1), []string{name}, write)
			}
		}
		// The documentation says that a source refuses by what it has seen itself.
		if err := s.db.WithContext(within(t, "item:1", 7)).Exec(update, "late", 1).Error; err != nil {
			t.Errorf("a source that has seen no token: %v", err)
		}
	})
}

func TestReadsGoToReplicas(t *testing.T) {
	configure := map[string]register{
		"source and replica": sourceAndReplica,
		"replica": func(_ *sites, on func(...string) []gorm.Dialector) *dbresolver.DBResolver {
			return dbresolver.Register(dbresolver.Config{Replicas: on("replica")})
		},
	}
	inEitherOrder(t, func(t *testing.T, cfg gorm.Config, when string) {
		for name, source := range map[string]string{"source and replica": "source", "replica": "home"} {
			s := resolved(t, cfg, when, configure[name], gormfence.WithLockRequired())
			for name, b := range s.all {
				b.exec(t, "INSERT INTO items (id, status) VALUES (1, ?)", name)
				b.exec(t, "INSERT INTO sqlfence VALUES ('reads', 8)")
			}
			for token, db := range map[string]*gorm.DB{
				"none": s.db.WithContext(t.Context()), "stale": s.db.WithContext(within(t, "reads", 7)), "new": s.db.WithContext(within(t, "reads", 9)),
			} {
				for what, read := range map[string]func(db *gorm.DB, status *string) error{
					"First": func(db *gorm.DB, status *string) error {
						var it item
						err := db.First(&it, 1).Error
						*status = it.Status
						return err
					},
					"Pluck": func(db *gorm.DB, status *string) error { return db.Model(&item{}).Pluck("status", status).Error },
					"Row": func(db *gorm.DB, status *string) error {
						return db.Model(&item{}).Select("status").Row().Scan(status)
					},
					"Raw, Scan": func(db *gorm.DB, status *string) error { return db.Raw("SELECT status FROM items").Scan(status).Error },
				} {
					for from, db := range map[string]*gorm.DB{
						"replica": db, source: db.Clauses(dbresolver.Write),
					} {
						var status string
						if err := read(db, &status); err != nil || status != from {
							t.Errorf("%s, %s, %s token: got %s, %v, want what %s has", name, what, token, status, err, from)
						}
					}
				}
				var it item
				if err := db.Clauses(clause.Locking{Strength: "UPDATE"}).First(&it).Error; err != nil || it.Status != source {
					t.Errorf("%s, FOR UPDATE, %s token: got %s, %v, want what %s has", name, token, it.Status, err, source)
				}
			}
			if got := s.tokens(t, "reads"); got["replica"] != 8 || got[source] != 8 {
				t.Errorf("%s: reads were guarded: %v", name, got)
			}
			err := s.db.WithContext(within(t, "reads", 7)).Exec(update, "late", 1).Error
			if got := s.have(t, 1, "late"); !errors.Is(err, sqlfence.ErrStale) || got != nil {
				t.Errorf("%s, a late write: got %v, want %v; it is in %v", name, err, sqlfence.ErrStale, got)
			}
		}
	})
}

func TestDbresolverSetsLimits(t *testing.T) {
	configure := func(s *sites, on func(...string) []gorm.Dialector) *dbresolver.DBResolver {
		return dbresolver.Register(dbresolver.Config{Replicas: on("replica")}).
			SetMaxOpenConns(3).SetMaxIdleConns(2).SetConnMaxLifetime(time.Hour).SetConnMaxIdleTime(time.Hour)
	}
	inEitherOrder(t, func(t *testing.T, cfg gorm.Config, when string) {
		s := resolved(t, cfg, when, configure)
		for _, name := range []string{"home", "replica"} {
			if n := s.all[name].plain.Stats().MaxOpenConnections; n != 3 {
				t.Errorf("%s may have %d connections, want 3", name, n)
			}
		}
	})
}

// What is refused on one database is refused on all of them.
func TestUnguardedWritesAreRefusedWithDbresolver(t *testing.T) {
	inEitherOrder(t, func(t *testing.T, cfg gorm.Config, when string) {
		s := resolved(t, cfg, when, sourceAndReplica, gormfence.WithLockRequired())
		s.insert(t, 1)
		for _, tt := range writes {
			if tt.name == "Transaction, by the ConnPool" {
				continue // goes past the callbacks
			}
			if err := tt.write(s.db.WithContext(t.Context()), 1, "free"); !errors.Is(err, gormfence.ErrUnguarded) {
				t.Errorf("%s without a lock: got %v, want %v", tt.name, err, gormfence.ErrUnguarded)
			}
		}
		under := s.db.WithContext(within(t, "r", 7))
		var status string
		for what, err := range map[string]error{
			"Scan": under.Raw("UPDATE items SET status = 'x' RETURNING status").Scan(&status).Error,
			"Row":  under.Raw("UPDATE items SET status = 'x' RETURNING status").Row().Scan(&status),
		} {
			if !errors.Is(err, gormfence.ErrUnguarded) {
				t.Errorf("%s: got %v, want %v", what, err, gormfence.ErrUnguarded)
			}
		}
		if got := s.have(t, 1, "new"); !slices.Equal(got, siteNames) {
			t.Errorf("only %v have the row as it was", got)
		}
	})
}
