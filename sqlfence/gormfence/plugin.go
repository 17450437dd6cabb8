package gormfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"gorm.io/gorm"
)

// ErrUnguarded: a write under a lock would not have been guarded, or, with [WithLockRequired], a write had no lock. The
// write has not reached the database. The error's text says what to do.
var ErrUnguarded = errors.New("gormfence: the write is not guarded")

// Plugin is a [gorm.Plugin]; make it with [New].
type Plugin struct {
	fence    *sqlfence.Fence
	required bool
	shared   bool
	err      error // of an option
}

// New returns the plugin, for [gorm.DB.Use]. Call Use before the gorm.DB is shared and before sessions are made of it, but
// after callbacks of GORM's own are removed. If an argument of New is wrong, Use returns the error. The fence must be for the
// kind of database that GORM has open.
func New(fence *sqlfence.Fence, opts ...Option) *Plugin {
	p := &Plugin{fence: fence}
	for _, o := range opts {
		if o == nil {
			p.err = errors.New("gormfence: nil option")
			continue
		}
		o.apply(p)
	}
	return p
}

// Option configures a [Plugin].
type Option interface{ apply(*Plugin) }

type option func(*Plugin)

func (o option) apply(p *Plugin) { o(p) }

// WithLockRequired refuses each write whose context carries no lock, unless its transaction is guarded. The error matches
// [ErrUnguarded] and [sqlfence.ErrNoToken]. A migration then needs another gorm.DB, without the plugin. Default: such a
// write passes.
func WithLockRequired() Option { return option(func(p *Plugin) { p.required = true }) }

// WithUnfenced lets a write or a transaction pass if its context carries only locks that do not fence: those with
// [holdfast.WithLimit] or [holdfast.WithShared]. Nothing in the database then keeps a late holder of such a lock from
// writing. Default: such a write or transaction is refused with [sqlfence.ErrNoToken], as in sqlfence itself.
func WithUnfenced() Option { return option(func(p *Plugin) { p.shared = true }) }

// Name returns the name under which GORM registers the plugin.
func (p *Plugin) Name() string { return "holdfast:gormfence" }

// Initialize installs the plugin. [gorm.DB.Use] calls it.
func (p *Plugin) Initialize(db *gorm.DB) error {
	switch {
	case p == nil || p.fence == nil:
		return errors.New("gormfence: nil Fence")
	case p.err != nil:
		return p.err
	case transaction(db.Statement.ConnPool) != nil:
		return errors.New("gormfence: Use must not be called in a transaction: its gorm.DB is gone when it ends")
	}
	g := &guard{Plugin: p, dialect: db.Name()}
	// The pool goes below gorm's prepared statements, because gorm recognizes those by their type.
	if prepared, ok := db.ConnPool.(*gorm.PreparedStmtDB); ok {
		prepared.ConnPool = &pool{prepared.ConnPool, g}
	} else {
		db.ConnPool = &pool{db.ConnPool, g}
		db.Statement.ConnPool = db.ConnPool
	}
	// The pool alone would not see everything: statements that are already prepared bypass it, and so does what gorm runs on a
	// connection (db.Connection). The callbacks alone would guard a transaction only at its first write, after its reads.
	//
	// Those that begin a transaction stand directly before gorm's own. Among callbacks before "*", the one that is registered
	// last runs first. So a plugin that chooses the database there, like dbresolver, would choose it before or after enter,
	// depending on the order of Use. After enter the statement already has a transaction on the database that gorm opened.
	on := db.Callback()
	return errors.Join(
		on.Create().Before(first(on.Create().Get, "gorm:begin_transaction", "gorm:before_create")).Register("gormfence:enter", g.write),
		on.Create().After("*").Register("gormfence:leave", g.leave),
		on.Update().Before(first(on.Update().Get, "gorm:begin_transaction", "gorm:setup_reflect_value")).Register("gormfence:enter", g.write),
		on.Update().After("*").Register("gormfence:leave", g.leave),
		on.Delete().Before(first(on.Delete().Get, "gorm:begin_transaction", "gorm:before_delete")).Register("gormfence:enter", g.write),
		on.Delete().After("*").Register("gormfence:leave", g.leave),
		on.Raw().Before(first(on.Raw().Get, "gorm:raw")).Register("gormfence:enter", g.exec),
		on.Raw().After("*").Register("gormfence:leave", g.leave),
		on.Query().Before(first(on.Query().Get, "gorm:query")).Register("gormfence:enter", g.query),
		on.Query().After("*").Register("gormfence:leave", g.leave),
		on.Row().Before("*").Register("gormfence:enter", g.row),
	)
}

// first returns the first of the callbacks that is registered, or "*" if none is.
func first(get func(name string) func(*gorm.DB), names ...string) string {
	for _, name := range names {
		if get(name) != nil { // gorm:begin_transaction is not with SkipDefaultTransaction
			return name
		}
	}
	return "*"
}

// guard is the plugin in one gorm.DB.
type guard struct {
	*Plugin
	dialect string
}

// write is the callback of Create, Update and Delete.
func (g *guard) write(db *gorm.DB) {
	if db.Error == nil && !db.DryRun {
		_ = db.AddError(g.enter(db, true))
	}
}

// exec is the callback of Exec. It sets no savepoint: nothing follows the one statement that would have to be protected, and
// on MySQL each DDL statement would end the savepoint.
func (g *guard) exec(db *gorm.DB) {
	if db.Error == nil && !db.DryRun && !g.reads(db) {
		_ = db.AddError(g.enter(db, false))
	}
}

// query is the callback of Find, First and the like.
func (g *guard) query(db *gorm.DB) {
	if db.Error == nil && !db.DryRun && !g.reads(db) {
		_ = db.AddError(g.enter(db, true))
	}
}

// row is the callback of Scan, Row and Rows. They return rows that are still open, so a write by them cannot have a
// transaction of its own, which would have to be committed before the rows are read.
func (g *guard) row(db *gorm.DB) {
	if db.Error != nil || db.DryRun || g.reads(db) {
		return
	}
	if alone, err := g.allow(db); err != nil || alone {
		if err == nil {
			err = unguarded("its rows would outlive a transaction of its own: run it in a Transaction, or Raw with Find")
		}
		_ = db.AddError(err)
		if isRows, _ := db.Get("rows"); isRows != true {
			db.Statement.Dest = failedRow(err) // Row has no other way to report it, and would return nil
		}
	}
}

// reads reports whether the statement is a read: one that gorm has yet to build of a model, or a text that shows no write.
func (g *guard) reads(db *gorm.DB) bool {
	return db.Statement.SQL.Len() == 0 || reads(db.Statement.SQL.String(), g.dialect)
}

// allow judges a write. alone says that it needs a guarded transaction of its own.
func (g *guard) allow(db *gorm.DB) (alone bool, err error) {
	ctx := db.Statement.Context
	locks, passed, err := g.locks(ctx)
	if err != nil {
		return false, err
	}
	within := transaction(db.Statement.ConnPool)
	begun, ours := within.(*tx)
	switch {
	case ours && len(locks) == 0 && len(begun.locks) > 0:
		return false, nil // whatever runs in it is guarded
	case len(locks) == 0 && !passed && g.required:
		return false, fmt.Errorf("%w; %w", unguarded("WithLockRequired is set, and there is no lock"), sqlfence.ErrNoToken)
	case len(locks) == 0:
		return false, nil
	case ours:
		for _, lock := range locks {
			same := func(m sqlfence.Mark) bool { return m.Resource == lock.Resource && m.Token == lock.Token } // in parallel or not
			if !slices.ContainsFunc(begun.locks, same) {
				return false, unguarded(fmt.Sprintf("its transaction was begun without the lock of %q, or read-only: begin it with the lock's context", lock.Resource))
			}
		}
		return false, nil
	case within != nil:
		// The plugin did not begin it: it was begun on a connection, for example. The plugin must not remember that it is
		// guarded, which would be wrong after a rollback to a savepoint.
		return false, g.raise(ctx, within)
	}
	return true, nil
}

// raise guards a transaction that the plugin did not begin. The guard is not parallel, because a parallel one might have to
// advance the row in another transaction first.
func (g *guard) raise(ctx context.Context, tx sqlfence.Tx) error {
	marks, _ := g.fence.Marks(ctx) // without marks Guard fails like Marks, and rolls back
	for _, m := range marks {
		m.Parallel = false
		ctx = m.In(ctx)
	}
	return g.fence.Guard(ctx, tx)
}

// locks returns what a write under ctx must be guarded by: the tokens, and the locks that do not fence, which make the fence
// refuse. passed reports that there is a lock that does not fence, and that WithUnfenced lets it pass.
func (g *guard) locks(ctx context.Context) (locks []sqlfence.Mark, passed bool, err error) {
	// Before the marks: if a lock is released in between, Marks fails, rather than leaving the lock out.
	held := holdfast.Held(ctx)
	locks, err = g.fence.Marks(ctx)
	if err != nil && !errors.Is(err, sqlfence.ErrNoToken) {
		return nil, false, err
	}
	for _, lock := range held {
		switch {
		case lock.Limit() == 1: // it is among the marks
		case g.shared:
			passed = true
		default:
			locks = append(locks, sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()})
		}
	}
	return locks, passed, nil
}

func unguarded(why string) error { return fmt.Errorf("%w: %s", ErrUnguarded, why) }

// own is the transaction of one statement.
type own struct {
	tx     gorm.TxCommitter
	outer  gorm.ConnPool // of the statement before
	cancel context.CancelFunc
}

const ownKey = "gormfence:own"

// enter lets a write pass, in a transaction of its own if it is not in one. gorm finds that transaction and begins no other.
func (g *guard) enter(db *gorm.DB, kept bool) error {
	alone, err := g.allow(db)
	if err != nil || !alone {
		return err
	}
	o := &own{outer: db.Statement.ConnPool, cancel: func() {}}
	ctx := db.Statement.Context
	if _, ok := ctx.Deadline(); !ok && db.DefaultTransactionTimeout > 0 { // as gorm's Begin does
		ctx, o.cancel = context.WithTimeout(ctx, db.DefaultTransactionTimeout)
	}
	conn, err := g.begin(ctx, o.outer, nil, kept)
	if err != nil {
		o.cancel()
		return err
	}
	o.tx = conn.(gorm.TxCommitter)
	db.Statement.ConnPool = conn
	db.InstanceSet(ownKey, o)
	return nil
}

// leave ends what enter has begun.
func (g *guard) leave(db *gorm.DB) {
	v, _ := db.InstanceGet(ownKey)
	o, _ := v.(*own)
	if o == nil {
		return
	}
	db.InstanceSet(ownKey, (*own)(nil)) // the statement may be used again
	db.Statement.ConnPool = o.outer
	defer o.cancel()
	if db.Error == nil {
		_ = db.AddError(o.tx.Commit())
		return
	}
	// Not with AddError, which hides what the first error matches.
	if err := o.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		db.Error = fmt.Errorf("%w; rollback: %w", db.Error, err)
	}
	if over := holdfast.Err(db.Statement.Context); over != nil { // a driver says at most that the context has ended
		db.Error = fmt.Errorf("%w; %w", db.Error, over)
	}
}
