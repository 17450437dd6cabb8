package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

// run starts a Redis and the replicas, gives them rows to send, and kills the first leader.
func run(ctx context.Context, out io.Writer) error {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true) // leases expire as time goes by
		if err := server.Start(); err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker, err := holdfast.New(rdb)
	if err == nil {
		err = locker.Ping(ctx) // or no replica will ever lead
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "leader")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	outbox := "file:" + filepath.ToSlash(filepath.Join(dir, "outbox.db")) + "?_txlock=immediate&_pragma=busy_timeout(10000)"
	db, err := sql.Open("sqlite", outbox)
	if err != nil {
		return err
	}
	defer db.Close()
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, fence.DDL()+"; CREATE TABLE outbox (id INTEGER PRIMARY KEY, row TEXT, sent_by TEXT, refused TEXT)")
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	replicas := map[string]*exec.Cmd{}
	defer func() {
		cancel() // which kills them
		for _, r := range replicas {
			_ = r.Wait()
		}
	}()
	for _, name := range []string{"replica 1", "replica 2", "replica 3"} {
		r := exec.CommandContext(ctx, program)
		r.Env = append(os.Environ(), "REPLICA="+name, "REDIS_ADDR="+addr, "OUTBOX="+outbox)
		r.Stdout, r.Stderr = out, os.Stderr
		if err := r.Start(); err != nil {
			return err
		}
		replicas[name] = r
	}
	put := func(id int, row string) (sentBy string, err error) {
		if _, err := db.ExecContext(ctx, "INSERT INTO outbox (id, row) VALUES (?, ?)", id, row); err != nil {
			return "", err
		}
		return await(ctx, db, "SELECT sent_by FROM outbox WHERE sent_by IS NOT NULL AND id = ?", id)
	}
	first, err := put(1, "order 42 is paid")
	if err != nil {
		return err
	}
	if err := replicas[first].Process.Kill(); err != nil {
		return err
	}
	fmt.Fprintln(out, first, "is killed")
	second, err := put(2, "order 42 is shipped")
	if err == nil {
		_, err = put(3, "pause")
	}
	if err != nil {
		return err
	}
	third, err := put(4, "order 43 is paid")
	if err == nil {
		_, err = await(ctx, db, "SELECT refused FROM outbox WHERE refused IS NOT NULL AND id = ?", 4)
	}
	fmt.Fprintf(out, "%s was refused after %s wrote\n", second, third)
	return err
}

// await waits until a query finds a row, and returns its value.
func await(ctx context.Context, db *sql.DB, query string, id int) (value string, err error) {
	for {
		if err = db.QueryRowContext(ctx, query, id).Scan(&value); !errors.Is(err, sql.ErrNoRows) {
			return value, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// pause plays a leader that is paused past its lease until its successor has written. A release stands for the end of the
// lease. The leader then wakes up with its old token and writes.
func (r *relay) pause(ctx context.Context) error {
	lock := holdfast.Held(ctx)[0]
	_ = lock.Release(ctx)
	late := sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}.In(context.Background())
	if _, err := await(late, r.db, "SELECT sent_by FROM outbox WHERE sent_by IS NOT NULL AND id = ?", 4); err != nil {
		return err
	}
	err := r.fence.WithTx(late, r.db, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE outbox SET sent_by = 'too late' WHERE id = 4")
		return err
	})
	if !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the late write was not refused: %v", err)
	}
	_, _ = r.db.ExecContext(late, "UPDATE outbox SET refused = ? WHERE id = 4", r.name)
	return err
}
