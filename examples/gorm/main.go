// Gorm withdraws from an account under a lock, in transactions of GORM that the database refuses to a holder that is none
// any more.
//
//	go run ./examples/gorm
//
// Redis and the database are embedded (miniredis and SQLite), unless REDIS_ADDR and DATABASE_URL (postgres://...) name
// others. There it makes two tables whose names begin with holdfast_example_, and drops them at the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/sqlfence"
	"gorm.io/gorm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

type account struct {
	ID      int64
	Balance int
}

func (account) TableName() string { return "holdfast_example_accounts" }

var errBalance = errors.New("the balance is too low")

// withdraw reads before it writes. So the guard comes first, before the one that guardWrites makes: what is read after it cannot be changed by another holder
// before this transaction ends. ctx is the lock's. GORM, unlike Fence.WithTx, does not repeat a transaction that the
// database broke off; the lock sees to it that there is hardly ever one.
func withdraw(ctx context.Context, db *gorm.DB, fence *sqlfence.Fence, id int64, amount int) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := fence.Guard(ctx, tx.Statement.ConnPool.(sqlfence.Tx)); err != nil {
			return err
		}
		var a account
		if err := tx.First(&a, id).Error; err != nil {
			return err
		}
		if a.Balance < amount {
			return errBalance
		}
		return tx.Model(&a).Update("balance", a.Balance-amount).Error
	})
}

func run(ctx context.Context, out io.Writer) (err error) {
	rdb, closeRedis, err := backend.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()
	locker, err := holdfast.New(rdb)
	if err != nil {
		return err
	}
	if err := locker.Ping(ctx); err != nil { // a wrong address or password shows here
		return err
	}
	defer func() { err = errors.Join(err, locker.Shutdown(context.WithoutCancel(ctx))) }()
	dialect, db, closeDB, err := openDatabase()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDB()) }()
	fence, err := sqlfence.New(dialect, sqlfence.WithTable("holdfast_example_fence"))
	if err != nil {
		return err
	}
	err = errors.Join(
		db.Exec(fence.DDL()).Error, // in earnest, a migration
		db.AutoMigrate(&account{}),
		db.Create(&account{ID: 42, Balance: 50}).Error,
		guardWrites(db, fence)) // from here on
	if err != nil {
		return err
	}
	return play(ctx, out, locker, db, fence)
}

func play(ctx context.Context, out io.Writer, locker *holdfast.Locker, db *gorm.DB, fence *sqlfence.Fence) error {
	key := holdfast.Key("account", "42")
	// The token of a first holder, who will be paused until others have written.
	var paused sqlfence.Mark
	err := locker.Do(ctx, key, func(ctx context.Context) error {
		lock := holdfast.Held(ctx)[0]
		paused = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}
		return nil
	})
	if err != nil {
		return err
	}

	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = locker.Do(ctx, key, func(ctx context.Context) error { return withdraw(ctx, db, fence, 42, 10) })
		})
	}
	all.Wait()
	done := 0
	for _, err := range errs {
		if err != nil && !errors.Is(err, errBalance) {
			return err
		}
		if err == nil {
			done++
		}
	}
	var a account
	if err := db.First(&a, 42).Error; err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d withdrew 10, %d left\n", done, len(errs), a.Balance)

	late := sqlfence.WithToken(ctx, paused.Resource, paused.Token)
	if err := withdraw(late, db, fence, 42, 0); !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the paused holder was not refused: %v", err)
	}
	// Without a guard of its own, in its code.
	if err := db.WithContext(late).Exec("UPDATE holdfast_example_accounts SET balance = 50").Error; !errors.Is(err, sqlfence.ErrStale) {
		return fmt.Errorf("the paused holder's Exec was not refused: %v", err)
	}
	fmt.Fprintln(out, "the paused holder was refused: its token is stale")
	return nil
}
