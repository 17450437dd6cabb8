// Cron registers a job on every replica, and each tick of the job runs on one of them.
//
//	go run ./examples/cron
//
// It runs a tick every second until Ctrl-C, and prints a line for each with the token of the lock. Redis is embedded
// (miniredis), unless REDIS_ADDR names one. In that case start the program several times: one of them prints each tick.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
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

	// All replicas need the same specs and the same time zone. UTC is the easiest to agree on. A panic ends the process
	// unless Recover is in the chain. SkipIfStillRunning is of no use here, because runs do not overlap on any replica.
	c := cron.New(cron.WithSeconds(), cron.WithLocation(time.UTC), cron.WithChain(cron.Recover(cron.DefaultLogger)))
	alert := func(e cronlock.Event) { // a real service would page somebody
		fmt.Fprintf(out, "job %s, tick %s: %v\n", e.Name, e.Tick.Format(time.TimeOnly), e.Err)
	}
	guard := cronlock.New(locker, c, cronlock.WithTrace(&cronlock.Trace{Late: alert, Lost: alert, Failed: alert, Differs: alert}))

	// Replicas claim the job's ticks by its name, so the name must be the same on all of them. Under a new name the last tick
	// can run again.
	_, err = guard.AddFunc("* * * * * *", "invoices", func(ctx context.Context) error {
		// The context ends when the lock is lost, and carries the token for a fence in the database.
		_, tick, _ := cronlock.Tick(ctx)
		fmt.Fprintf(out, "invoices of %s, token %d\n", tick.Format(time.TimeOnly), holdfast.Held(ctx)[0].Token())
		return nil
	})
	if err == nil {
		c.Start()
		<-ctx.Done()
	}

	// Guard.Stop replaces cron's Stop. It also ends the contexts of jobs that take longer than patience allows.
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, guard.Stop(patience), locker.Shutdown(patience))
}
