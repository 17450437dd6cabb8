package history

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// locks is what a worker tests: holdfast, or one that is broken.
type locks interface {
	acquire(ctx context.Context, key string, waits bool, how manner) (handle, error)
	// several runs fn while it holds all keys, with a handle for each.
	several(ctx context.Context, keys []string, fn func([]handle)) error
	// lead runs fn while it leads, and again where that was lost.
	lead(ctx context.Context, key string, fn func(handle)) error
	claim(ctx context.Context, name string, at time.Time, gap time.Duration) (bool, error)
	close() error
}

// manner is how a lock is acquired.
type manner struct {
	bare   bool   // without renewal
	limit  int    // 0 where none is named
	id     string // of a re-entry
	share  string // "" where none is named
	within *hold  // whose context the call is under, if it is nested
}

// handle is a lock that is held.
type handle interface {
	Token() int64
	Deadline() time.Time
	Err() error
	Context(parent context.Context) context.Context
	Release(context.Context) error
}

// Holdfast is the lock to be tested; all others are broken, but for Plain.
const Holdfast = "holdfast"

func newLocks(o Orders) (locks, error) {
	if flaws, ok := plain[o.Lock]; ok {
		return newPlain(o, flaws), nil
	}
	opts := []holdfast.Option{holdfast.WithTTL(o.TTL)}
	if o.Apart {
		opts = append(opts, holdfast.WithLocalHandover(0, 0))
	}
	if o.passing() {
		opts = append(opts, holdfast.WithReleaseInBackground())
	}
	var clients []*redis.Client
	for _, addr := range o.Nodes {
		clients = append(clients, newClient(addr, 0))
	}
	var l *holdfast.Locker
	var err error
	if len(clients) == 1 {
		l, err = holdfast.New(clients[0], opts...)
	} else {
		l, err = redlock.New(clients, append(opts, redlock.WithQuarantine(o.Quarantine), redlock.WithNodeTimeout(o.TTL*2/5))...)
	}
	return ours{l, o.TTL}, err
}

func newClient(addr string, retries int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: retries,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

type ours struct {
	*holdfast.Locker
	ttl time.Duration
}

func (l ours) acquire(ctx context.Context, key string, waits bool, how manner) (handle, error) {
	var opts []holdfast.CallOption
	if how.bare {
		opts = append(opts, holdfast.WithoutRenewal())
	}
	switch {
	case how.limit == Unlimited:
		opts = append(opts, holdfast.WithShared())
	case how.limit > 0:
		opts = append(opts, holdfast.WithLimit(how.limit))
	}
	if how.id != "" {
		opts = append(opts, holdfast.WithReentryID(how.id))
	}
	if how.share != "" {
		opts = append(opts, holdfast.WithShare(how.share))
	}
	if how.within != nil {
		opts = append(opts, holdfast.WithReentrancy())
	}
	take := l.TryAcquire
	if waits {
		take = l.Acquire
	}
	lock, err := take(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return lock, nil
}

func (l ours) several(ctx context.Context, keys []string, fn func([]handle)) error {
	return l.DoAll(ctx, keys, func(ctx context.Context) error {
		all := make([]handle, len(keys))
		for _, lock := range holdfast.Held(ctx) {
			all[slices.Index(keys, lock.Key())] = lock
		}
		fn(all)
		return nil
	})
}

func (l ours) lead(ctx context.Context, key string, fn func(handle)) error {
	return l.Lead(ctx, key, func(ctx context.Context) error {
		fn(leadership{holdfast.Held(ctx)[0], ctx})
		return nil
	})
}

// leadership counts until its context has ended and its lock is lost: it is not released under a function that goes on.
type leadership struct {
	*holdfast.Lock
	ctx context.Context
}

func (l leadership) Err() error {
	if err := l.Lock.Err(); l.ctx.Err() != nil && (errors.Is(err, holdfast.ErrLost) || errors.Is(err, holdfast.ErrClosed)) {
		return err
	}
	return nil
}

func (l ours) claim(ctx context.Context, name string, at time.Time, gap time.Duration) (bool, error) {
	return tick.Claim(ctx, l.Locker, name, at, tick.WithWindow(window, time.Second), tick.WithMinGap(gap))
}

// close leaves what hangs to the end of the process.
func (l ours) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*l.ttl)
	defer cancel()
	if err := l.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func ofAcquire(err error) Outcome {
	switch {
	case errors.Is(err, holdfast.ErrNotAcquired):
		return Refused
	case errors.Is(err, holdfast.ErrInvalid), errors.Is(err, holdfast.ErrSelfDeadlock):
		panic(err) // the worker's own mistake
	}
	return Unknown
}

func ofRelease(err error) Outcome {
	switch {
	case err == nil:
		return Released
	case errors.Is(err, holdfast.ErrLost):
		return Lost
	}
	return Unknown
}

func ofClaim(got bool, err error) Outcome {
	switch {
	case got:
		return Granted
	case err == nil:
		return Refused
	case errors.Is(err, tick.ErrWindow):
		return Nothing
	}
	return Unknown
}
