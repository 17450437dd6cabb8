// Cron has two jobs on every replica, and each tick of them runs on one.
//
//	go run ./examples/cron
//
// It runs until Ctrl-C. Redis is embedded (miniredis), unless REDIS_ADDR names one: then start the program several times.
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

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
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
	rdb, closeRedis, err := backend.Redis(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	locker, err := holdfast.New(rdb, holdfast.WithLabel(fmt.Sprint(host, "/", os.Getpid()))) // for who looks at a lock
	if err != nil {
		return err
	}

	// All replicas need the same specs and the same time zone: UTC is the easiest to agree on. A panic ends the process
	// unless Recover is in the chain. SkipIfStillRunning has no use here: runs do not overlap on any replica.
	c := cron.New(cron.WithSeconds(), cron.WithLocation(time.UTC),
		cron.WithChain(cron.Recover(cron.DefaultLogger)))
	alert := func(e cronlock.Event) { // in earnest it would page somebody
		fmt.Fprintf(out, "job %s, tick %s: %v\n", e.Name, e.Tick.Format(time.TimeOnly), e.Err)
	}
	guard := cronlock.New(locker, c, cronlock.WithTrace(&cronlock.Trace{Late: alert, Lost: alert, Failed: alert, Differs: alert}))

	// The name is the job's on all replicas, and the key of its lock. It is what a tick is claimed by: renamed, it runs anew.
	_, err = guard.AddFunc("* * * * * *", "invoices", func(ctx context.Context) error {
		// The context ends when the lock is lost, and carries the token for a fence in the database.
		_, tick, _ := cronlock.Tick(ctx)
		fmt.Fprintf(out, "invoices of %s, token %d\n", tick.Format(time.TimeOnly), holdfast.Held(ctx)[0].Token())
		return nil
	})
	if err == nil {
		// A job that knows no context is wrapped. A run that takes longer than the period leaves ticks out, see WithBusy.
		var cleanUp cron.Job
		if cleanUp, err = guard.Wrap("clean-up", cron.FuncJob(func() { fmt.Fprintln(out, "cleaning up") })); err == nil {
			_, err = c.AddJob("@every 2s", cleanUp)
		}
	}
	if err == nil {
		c.Start()
		<-ctx.Done()
	}

	// Guard.Stop in place of cron's: it also ends the contexts of jobs that take longer than that.
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(err, guard.Stop(patience), locker.Shutdown(patience))
}
