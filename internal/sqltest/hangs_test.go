package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// Work that hangs loses its lock to the next holder, and when it comes back the database refuses what it writes.
func testHangs(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE hung (k varchar(20), who varchar(20))")
	n := 100
	if os.Getenv("HOLDFAST_SOAK") != "" {
		n = 1000
	}
	c.db.SetMaxOpenConns(20)
	const ttl = 3 * time.Second
	server := servertest.Redis(t)
	locker := func(opts ...holdfast.Option) *holdfast.Locker {
		rdb := server.Client()
		l, err := holdfast.New(rdb, append(opts, holdfast.WithTTL(ttl))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Shutdown(context.Background()) })
		return l
	}
	hangs, next := locker(), locker()
	write := func(ctx context.Context, key, who string) error {
		return c.fence.WithTx(ctx, c.db, c.opts, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, c.q("INSERT INTO hung (k, who) VALUES (?, ?)"), key, who)
			return err
		})
	}
	var mu sync.Mutex // guards what follows
	var most time.Duration
	late := 0
	var all sync.WaitGroup
	for i := range n {
		d := time.Duration(200+rand.IntN(800)) * time.Millisecond
		all.Go(func() {
			time.Sleep(time.Duration(rand.IntN(5*n)) * time.Millisecond)
			key := fmt.Sprint("hung:", i)
			taken, written, reported := make(chan struct{}), make(chan struct{}), time.Time{}
			all.Go(func() {
				defer close(written)
				<-taken
				lock, err := next.Acquire(context.Background(), key)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if waited := time.Since(reported); waited > d+ttl {
					late++
					most = max(most, waited-d-ttl)
				}
				mu.Unlock()
				if err := write(lock.Context(context.Background()), key, "next"); err != nil {
					t.Error(err)
				}
				if err := lock.Release(context.Background()); err != nil {
					t.Error(err)
				}
			})
			err := hangs.Do(context.Background(), key, func(ctx context.Context) error {
				for range 3 {
					time.Sleep(d / 3)
					reported = time.Now()
					holdfast.Progress(ctx)
				}
				close(taken)
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, holdfast.ErrNoProgress) || !errors.Is(cause, holdfast.ErrLost) {
					t.Errorf("it ended with %v", cause)
				}
				<-written // it hangs on
				if err := write(context.WithoutCancel(ctx), key, "late"); !errors.Is(err, holdfast.ErrNoProgress) {
					t.Errorf("the late write: %v", err)
				}
				elsewhere := mark(key, holdfast.Held(ctx)[0].Token()).In(context.Background()) // which does not know of the loss
				if err := write(elsewhere, key, "late"); !errors.Is(err, sqlfence.ErrStale) {
					t.Errorf("the late write, elsewhere: %v", err)
				}
				return nil
			}, holdfast.WithProgress(d))
			if !errors.Is(err, holdfast.ErrNoProgress) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := c.number(t, "SELECT count(*) FROM hung WHERE who = 'next'"); got != int64(n) {
		t.Errorf("%d next holders have written, want %d", got, n)
	}
	if got := c.number(t, "SELECT count(*) FROM hung WHERE who = 'late'"); got != 0 {
		t.Errorf("%d have written late", got)
	}
	t.Logf("%d of %d began later than d and a TTL after the last report, by at most %v", late, n, most)
}
