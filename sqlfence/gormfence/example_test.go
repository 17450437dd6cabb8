package gormfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/glebarez/sqlite"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/holdfast-go/holdfast/sqlfence/gormfence"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

func Example() {
	type order struct {
		ID     int64
		Status string
	}
	db, err := gorm.Open(sqlite.Open(":memory:"), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		log.Fatal(err)
	}
	if pool, err := db.DB(); err == nil {
		pool.SetMaxOpenConns(1) // in memory, each connection would have its own database
	}
	fence, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		log.Fatal(err)
	}
	err = errors.Join(db.Exec(fence.DDL()).Error, db.AutoMigrate(&order{}), db.Create(&order{ID: 42, Status: "new"}).Error,
		db.Use(gormfence.New(fence)))
	if err != nil {
		log.Fatal(err)
	}

	// In a program, use the lock's context, which Locker.Do passes to its function.
	first := sqlfence.Mark{Resource: "order:42", Token: 1}.In(context.Background())
	second := sqlfence.Mark{Resource: "order:42", Token: 2}.In(context.Background())
	pay := func(ctx context.Context) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			var o order
			if err := tx.First(&o, 42).Error; err != nil {
				return err
			}
			return tx.Model(&o).Update("status", "paid").Error
		})
	}
	fmt.Println("second:", pay(second))
	fmt.Println("first, late:", errors.Is(pay(first), sqlfence.ErrStale))
	// Output:
	// second: <nil>
	// first, late: true
}
