//go:build !without_asynq

package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

// testTasks has a handler of asynq write under its Guard's lock: the token is in its context. A run that lost the lock to
// another one is refused by the database, and by its context once that knows.
func testTasks(t *testing.T, c *cell) {
	c.exec(t, "CREATE TABLE payouts (task varchar(20))")
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	locker, err := holdfast.New(rdb, holdfast.WithTTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := locker.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
	}()
	guard := asynqlock.New(locker, "account", asynqlock.Field("account"))
	write := func(ctx context.Context, task string) error {
		return c.fence.WithTx(ctx, c.db, nil, func(_ context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, c.q("INSERT INTO payouts (task) VALUES (?)"), task)
			return err
		})
	}
	started, wrote, judged := make(chan struct{}), make(chan struct{}), make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(guard.Wrap)
	mux.HandleFunc("slow", func(ctx context.Context, _ *asynq.Task) error {
		defer close(judged)
		close(started)
		<-wrote
		if err := write(ctx, "slow"); !errors.Is(err, sqlfence.ErrStale) { // before the lock knows
			t.Errorf("got %v, want ErrStale", err)
		}
		<-ctx.Done()
		if err := write(ctx, "slow"); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}
		return asynq.SkipRetry
	})
	mux.HandleFunc("quick", func(ctx context.Context, _ *asynq.Task) error {
		defer close(wrote)
		return write(ctx, "quick")
	})
	workers := asynq.NewServerFromRedisClient(rdb, guard.Config(asynq.Config{
		LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond, Concurrency: 2,
	}))
	if err := workers.Start(mux); err != nil {
		t.Fatal(err)
	}
	defer workers.Shutdown()
	client := asynq.NewClientFromRedisClient(rdb)
	enqueue := func(task string) {
		t.Helper()
		if _, err := client.Enqueue(asynq.NewTask(task, []byte(`{"account": 42}`))); err != nil {
			t.Fatal(err)
		}
	}
	enqueue("slow")
	<-started
	// Redis forgets the lock, as after a failover to a replica that was behind, and the next task gets it.
	if err := rdb.Del(within(t), holdfast.Key("account", "42")).Err(); err != nil {
		t.Fatal(err)
	}
	enqueue("quick")
	<-judged
	var tasks string
	if err := c.db.QueryRow("SELECT task FROM payouts").Scan(&tasks); err != nil || tasks != "quick" {
		t.Errorf("the payouts are those of %q, %v", tasks, err)
	}
}
