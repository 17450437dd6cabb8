package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock/gocronlock"
	"github.com/redis/go-redis/v9"
)

// A job on two replicas: one of them runs it at each tick.
func Example() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	ran := make(chan string, 2)
	for range 2 { // in a program, this is a process
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		locker, err := holdfast.New(rdb)
		if err != nil {
			log.Fatal(err)
		}
		defer locker.Shutdown(context.Background())
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.New(locker, 12*time.Hour)))
		if err != nil {
			log.Fatal(err)
		}
		defer s.Shutdown()
		_, err = s.NewJob(
			gocron.DurationJob(24*time.Hour),
			gocron.NewTask(func() { ran <- "invoices" }),
			gocron.WithName("invoices"),
			gocron.WithStartAt(gocron.WithStartImmediately()), // and not tomorrow
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, job string, _ error) { ran <- "not here" })),
		)
		if err != nil {
			log.Fatal(err)
		}
		s.Start()
	}
	for range 2 {
		fmt.Println(<-ran)
	}
	// Unordered output:
	// invoices
	// not here
}

// The leader runs all jobs.
func ExampleElector() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	locker, err := holdfast.New(redis.NewClient(&redis.Options{Addr: server.Addr()}))
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Shutdown(context.Background())

	elector := gocronlock.NewElector(locker, "scheduler")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- elector.Run(ctx) }()
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan string)
	if _, err := s.NewJob(gocron.DurationJob(10*time.Millisecond), gocron.NewTask(func() { ran <- "on the leader" })); err != nil {
		log.Fatal(err)
	}
	s.Start()
	fmt.Println(<-ran)

	go func() {
		for range ran { // lets the last run end
		}
	}()
	err = s.Shutdown()
	cancel()
	fmt.Println(err, <-ended)
	// Output:
	// on the leader
	// <nil> holdfast: lead "scheduler": context canceled
}
