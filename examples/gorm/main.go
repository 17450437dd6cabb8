// Gorm writes under a lock with GORM, and the database refuses a late write of a holder that has lost the lock. The plugin
// gormfence guards the writes.
//
//	go run ./examples/gorm
//
// It prints the balance after a withdrawal, and that two late writes were refused. Redis is embedded (miniredis), unless
// REDIS_ADDR names one. The database is SQLite in memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/glebarez/sqlite"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/gormfence"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"
)

type account struct{ ID, Balance int64 }

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" { // a Redis inside this process, to try it out
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
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(ctx)) }()

	// For PostgreSQL: postgres.Open("postgres://..."), and sqlfence.Postgres below.
	db, err := gorm.Open(sqlite.Open(":memory:"))
	if err != nil {
		return err
	}
	if pool, err := db.DB(); err == nil {
		defer pool.Close()
		pool.SetMaxOpenConns(1) // in memory each connection would be a database of its own
	}
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		return err
	}
	err = errors.Join(
		db.Exec(fence.DDL()).Error, db.AutoMigrate(&account{}), // in a real service, a migration
		db.Create(&account{ID: 42, Balance: 50}).Error,
		db.Use(gormfence.New(fence, gormfence.WithLockRequired()))) // from here on a write needs a lock
	if err != nil {
		return err
	}

	// withdraw reads before it writes. The transaction is guarded before the read, so no other holder changes the balance
	// in between.
	var a account
	withdraw := func(ctx context.Context) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := tx.First(&a, 42).Error; err != nil {
				return err
			}
			return tx.Model(&a).Update("balance", a.Balance-10).Error
		})
	}
	// A first holder is paused before it writes. Its lease expires, which a release stands for, and the next holder withdraws.
	first, err := locker.Acquire(ctx, "account:42")
	if err == nil {
		err = errors.Join(first.Release(ctx), locker.Do(ctx, "account:42", withdraw))
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the balance is", a.Balance)
	// The first holder wakes up with its old token. A write outside of a transaction is refused as well.
	late := sqlfence.Mark{Resource: first.Key(), Token: first.Token()}.In(ctx)
	for _, err := range []error{withdraw(late), db.WithContext(late).Model(&a).Update("balance", 50).Error} {
		if !errors.Is(err, sqlfence.ErrStale) {
			return fmt.Errorf("the late write was not refused: %v", err)
		}
		fmt.Fprintln(out, "a late write was refused")
	}
	return nil
}
