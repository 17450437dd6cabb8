package main

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"
)

// guarding is a locker with fencing whose locks travel in contexts, to a database that refuses what is stale.
type guarding interface {
	locker
	// under takes the lock with ctx and returns the context of its holder.
	under(ctx context.Context, key string) (lock, context.Context, error)
	// write runs a statement in db as the holder whose context ctx is.
	write(ctx context.Context, db *sql.DB, statement string) error
}

var guards = []scenario{
	{
		name:   "inner-released",
		wrong:  "Work under two locks goes on after the inner one was released, and its late write is guarded by the outer one alone: it overwrites what the next holder of the inner one has written.",
		source: "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
		needs:  []feature{fencing},
		run:    innerReleased,
	},
}

func innerReleased(b *bed) verdict {
	s := b.server()
	db := b.database()
	at := settings{addrs: []string{s.Addr()}, lease: long}
	former, next := b.open(at).(guarding), b.open(at).(guarding)
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	take := func(l guarding, ctx context.Context, key string) (h lock, inner context.Context) {
		if !b.until(func() (ok bool) {
			var err error
			h, inner, err = l.under(ctx, key)
			return err == nil
		}) {
			b.Fatalf("%s, which is free, cannot be had", key)
		}
		b.keep(h)
		return h, inner
	}
	_, job := take(former, ctx, "job")
	inner, both := take(former, job, order)
	late := context.WithoutCancel(both)
	if err := former.write(late, db, "UPDATE orders SET status = 'first'"); err != nil {
		return fail("refused under both locks: %v", brief(err))
	}
	if err := inner.release(ctx); err != nil {
		b.Fatalf("release: %v", err)
	}
	_, successor := take(next, ctx, order)
	if err := next.write(successor, db, "UPDATE orders SET status = 'next'"); err != nil {
		return fail("the next holder is refused: %v", brief(err))
	}
	refusal := former.write(late, db, "UPDATE orders SET status = 'late'")
	var status string
	if err := db.QueryRowContext(ctx, "SELECT status FROM orders").Scan(&status); err != nil {
		b.Fatalf("%v", err)
	}
	if refusal == nil || status != "next" {
		return fail("the late write is accepted: the order is %q", status)
	}
	if err := former.write(job, db, "UPDATE orders SET status = 'job'"); err != nil {
		return fail("the outer lock's own write is refused: %v", brief(err))
	}
	return pass("the late write is refused: %v", brief(refusal))
}

// database has one order, and the table of guard rows.
func (b *bed) database() *sql.DB {
	settings := url.Values{"_pragma": {"busy_timeout(10000)"}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(b.TempDir(), "shop.db"))+"?"+settings.Encode())
	if err != nil {
		b.Fatalf("%v", err)
	}
	b.Cleanup(func() { _ = db.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, statement := range []string{fence().DDL(), "CREATE TABLE orders (status TEXT)", "INSERT INTO orders VALUES ('new')"} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			b.Fatalf("%s: %v", statement, err)
		}
	}
	return db
}
