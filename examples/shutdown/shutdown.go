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

// How long each step is allowed to take. The sum is a little less than the time that the platform grants before it kills the
// process (in Kubernetes terminationGracePeriodSeconds, 30 s by default).
const (
	httpPatience   = 8 * time.Second
	cronPatience   = 8 * time.Second
	asynqPatience  = 6 * time.Second // its ShutdownTimeout; asynq takes up to 1.5 s more
	lockerPatience = 4 * time.Second
)

// shutDown stops what brings in work, then what does the work, and then what the work needs. Each step lets running work
// finish, within a time of its own, so that a slow step leaves the others theirs.
//
// The Locker comes last, except for its Redis client, because it renews the locks of handlers for as long as they run. A
// Locker that is shut down before its handlers abandons their locks when its own patience ends. After the Locker's shutdown
// no lock is left: the next replica acquires them at once, without waiting for leases to expire.
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
	// Accept no new connections, and wait for the requests. Tasks that they enqueue wait in Redis for another replica. Requests
	// that take longer lose their connections, which ends their contexts.
	step("http", httpPatience, func(ctx context.Context) error {
		err := server.Shutdown(ctx)
		if err != nil {
			_ = server.Close()
		}
		return err
	})
	// Start no new ticks, and wait for the jobs. Guard.Stop ends the contexts of jobs that take longer; cron's Stop does not.
	step("cron", cronPatience, guard.Stop)
	// Start no new tasks, and wait for the handlers.
	step("asynq", asynqPatience, func(context.Context) error { worker.Shutdown(); return nil })
	step("locker", lockerPatience, locker.Shutdown)
	return errors.Join(errs...)
}
