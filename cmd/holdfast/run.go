package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
)

// errLingers is for a group of which something is left that SIGKILL does not end.
var errLingers = errors.New("a process of the command does not end: the lock is not released, and its lease runs out")

// runFlags are the flags of run.
func runFlags(flags *flag.FlagSet, s *settings) {
	flags.DurationVar(&s.wait, "wait", 0, "how `long` to wait for the lock at most (default: as long as it takes)")
	flags.BoolVar(&s.try, "try", false, "do not wait for the lock")
	flags.IntVar(&s.limit, "limit", 1, "let up to `n` commands run at a time")
	flags.BoolVar(&s.shared, "shared", false, "hold the lock like a reader, with any number of others")
	flags.BoolVar(&s.lead, "lead", false, "run the command while this process leads; again, here or elsewhere, if it fails or the lock is lost")
	flags.DurationVar(&s.ttl, "ttl", 15*time.Second, "the `length` of the lease: how long a crash keeps the others out")
	flags.DurationVar(&s.grace, "grace", 0, "the `time` between SIGTERM and SIGKILL if the lease runs out, up to a third of it (default: a quarter)")
	flags.Func("quarantine", "of several masters: for how `long` one that has started does not vote, see redlock.WithQuarantine (default 30s)", func(text string) error {
		d, err := time.ParseDuration(text)
		s.quarantine = &d
		return err
	})
	flags.StringVar(&s.label, "label", hostname(), "the `name` of the holder, which ls shows")
}

// hostname is in Kubernetes the name of the pod.
func hostname() string {
	name, _ := os.Hostname()
	return strings.ToValidUTF8(name[:min(len(name), 64)], "")
}

func checkRun(s *settings, args []string) error {
	if s.grace == 0 {
		s.grace = s.ttl / 4
	}
	switch {
	case len(args) < 2 || args[1] == "--" && len(args) == 2:
		return errors.New("run needs a key and a command: holdfast run KEY -- command args")
	case s.try && (s.wait > 0 || s.lead), s.lead && (s.wait > 0 || s.limit != 1 || s.shared):
		return errors.New("-try does not go with -wait, and -lead goes with none of -try, -wait, -limit and -shared")
	case s.ttl < time.Second:
		return fmt.Errorf("-ttl %v: want at least 1s, as it takes a while to end processes", s.ttl)
	case s.grace < 0 || s.grace > s.ttl/3:
		return fmt.Errorf("-grace %v: want at most a third of -ttl, as a lease is renewed when a third of it is over", s.grace)
	}
	return nil
}

// runCommand runs a command under a lock.
func (a *app) runCommand(ctx context.Context, on masters, s *settings, args []string) error {
	key, args := args[0], args[1:]
	if args[0] == "--" {
		args = args[1:]
	}
	opts := []holdfast.Option{holdfast.WithTTL(s.ttl), holdfast.WithLabel(s.label)}
	if s.limit != 1 {
		opts = append(opts, holdfast.WithLimit(s.limit))
	}
	if s.quarantine != nil {
		opts = append(opts, redlock.WithQuarantine(*s.quarantine))
	}
	if s.shared {
		opts = append(opts, holdfast.WithShared())
	}
	locker, err := on.locker(opts...)
	if err != nil {
		return err
	}
	var stopped os.Signal
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // newCommand catches what ends ctx
	defer cancel()
	c, err := newCommand(args, s, func(sig os.Signal) { stopped = sig; cancel() })
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = locker.Shutdown(ctx)
	}()
	if s.lead {
		err = a.leadCommand(ctx, locker, c, key, s.ttl)
	} else {
		err = a.holdCommand(ctx, locker, c, key, s)
	}
	if own := (*exit)(nil); err != nil && ctx.Err() != nil && !errors.As(err, &own) && !errors.Is(err, holdfast.ErrLost) {
		return &exit{status: signalled(stopped)} // while it waited
	}
	return err
}

// holdCommand runs c once.
func (a *app) holdCommand(ctx context.Context, locker *holdfast.Locker, c *command, key string, s *settings) error {
	acquire, opts := locker.Acquire, []holdfast.CallOption(nil)
	if s.try {
		acquire = locker.TryAcquire
	} else if s.wait > 0 {
		opts = append(opts, holdfast.WithWait(s.wait))
	}
	lock, err := acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	status, err := a.under(lock, c, s.ttl)
	if errors.Is(err, errLingers) {
		return err
	}
	free, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	released := lock.Release(free)
	switch {
	case err != nil:
		return err
	case errors.Is(released, holdfast.ErrLost):
		return fmt.Errorf("the command ended with status %d, but %w", status, released)
	case released != nil:
		fmt.Fprintln(a.stderr, "holdfast: the command has run, but the lock stays until its lease expires:", explain(released))
	}
	return &exit{status: status}
}

// leadCommand runs c again and again, on one replica at a time, until it has succeeded once.
func (a *app) leadCommand(ctx context.Context, locker *holdfast.Locker, c *command, key string, ttl time.Duration) error {
	var last error
	err := locker.Lead(ctx, key, func(leading context.Context) error {
		lock := holdfast.Held(leading)[0]
		status, err := a.under(lock, c, ttl)
		if last = err; err == nil && (status != 0 || ctx.Err() != nil) {
			last = &exit{status: status}
		}
		if last != nil && ctx.Err() == nil {
			fmt.Fprintln(a.stderr, "holdfast: the command waits to lead again:", explain(last))
		}
		return last
	})
	if err != nil && ctx.Err() != nil && last != nil {
		return last
	}
	return err
}

// under runs c under a lock with a lease of that length. The first lease of a lock that another holder has handed over is
// short, so that its end would come too soon for a command that has just begun.
func (a *app) under(lock *holdfast.Lock, c *command, ttl time.Duration) (status int, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), lock.Deadline())
	defer cancel()
	if err := lock.Extend(ctx, ttl); err != nil {
		return 0, err
	}
	status, lost, err := c.run(lock)
	if lost && err == nil {
		err = fmt.Errorf("%w, or its lease ran out: the command was ended, with status %d", holdfast.ErrLost, status)
	}
	return status, err
}
