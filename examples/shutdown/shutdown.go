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

// How long each step may take. Together they are a little less than what the platform grants before it kills (Kubernetes:
// terminationGracePeriodSeconds, 30 s by default).
const (
	httpPatience   = 8 * time.Second
	cronPatience   = 8 * time.Second
	asynqPatience  = 6 * time.Second // its ShutdownTimeout, beyond which asynq takes up to 1.5 s more
	lockerPatience = 4 * time.Second
)

// shutDown ends what brings in work, then what does the work, and then what the work needs. Each step lets what runs
// finish, within a time of its own: a slow one leaves the others theirs. The Locker comes last but for its Redis client: as
// long as handlers run, it renews their locks, and one that is closed before them would give their locks up when its own
// patience ends. After it no key is left to wait for: the next replica has the locks at once, and not when their leases are
// over.
func shutDown(ctx context.Context, out io.Writer, server *http.Server, guard *cronlock.Guard, worker *asynq.Server, locker *holdfast.Locker) error {
	var errs []error
	step := func(name string, patience time.Duration, stop func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := stop(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, err)
		fmt.Fprintln(out, "stopped:", name)
	}
	// No new connections, and wait for the requests. They may enqueue tasks, which wait in Redis for another replica. Those
	// that take longer lose their connections, which ends their contexts.
	step("http", httpPatience, func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if err != nil {
			_ = server.Close()
		}
		return err
	})
	// No new ticks, and wait for the jobs. It ends the contexts of those that take longer, which cron's own Stop does not.
	step("cron", cronPatience, guard.Stop)
	// No new tasks, and wait for the handlers.
	step("asynq", asynqPatience, func(context.Context) error { worker.Shutdown(); return nil })
	step("locker", lockerPatience, locker.Shutdown)
	return errors.Join(errs...)
}
