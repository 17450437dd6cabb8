package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/cronlock"
)

// patience is how long work may go on after the signal: a little less than what the platform grants before it kills
// (Kubernetes: terminationGracePeriodSeconds, 30 s by default).
const patience = 25 * time.Second

// shutDown ends what brings in work, then what does the work, and then what the work needs. Each step lets what runs
// finish. The Locker comes last but for its Redis client: as long as handlers run, it renews their locks, and one that is
// closed before them would give their locks up when its own patience ends. After it no key is left to wait for: the next
// replica has the locks at once, and not when their leases are over.
func shutDown(ctx context.Context, out io.Writer, server *http.Server, guard *cronlock.Guard, worker *asynq.Server, locker *holdfast.Locker) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var errs []error
	step := func(name string, stop func() error) {
		err := stop()
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, err)
		fmt.Fprintln(out, "stopped:", name)
	}
	// No new connections, and wait for the requests. They may enqueue tasks, which wait in Redis for another replica.
	step("http", func() error { return server.Shutdown(ctx) })
	// No new ticks, and wait for the jobs. It ends the contexts of those that take longer, which cron's own Stop does not.
	step("cron", func() error { return guard.Stop(ctx) })
	// No new tasks, and wait for the handlers.
	step("asynq", func() error { worker.Shutdown(); return nil })
	step("locker", func() error { return locker.Shutdown(ctx) })
	return errors.Join(errs...)
}
