package holdfast

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// A Locker takes locks in one Redis. It is safe for concurrent use, and a process needs one for each Redis. Make it with
// [New]; the zero value does not work.
type Locker struct {
	cfg     config
	env     *timing.Env
	store   store
	sched   *scheduler
	queues  queues
	passing passing
}

// New makes a Locker on one Redis or Valkey server, a master that Sentinel manages, or a Cluster. A redis.Ring works too, but
// its waiters poll, see [WithPolling], and it can forget locks when its shards come and go. New sends nothing yet, see
// [Locker.Ping].
//
// The client remains the caller's. It may be shared, and must stay open until [Locker.Shutdown] has returned. Its
// timeouts and retries do not matter for correctness, as long as DialTimeout and PoolTimeout are below a minute. Calls
// share connections, and while Redis answers, they usually leave a quarter of a *redis.Client's pool to others.
//
// If ContextTimeoutEnabled is set in the options of a *redis.Client, a call that is alone sends its command itself
// instead of passing it to another goroutine, which saves some microseconds. In return, a call whose context is cancelled
// before its deadline may return up to 250 ms late while Redis does not answer.
//
// New returns an [ErrInvalid] for a nil client and for options that can never work.
func New(client redis.UniversalClient, opts ...Option) (*Locker, error) {
	if client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil() {
		return nil, invalid("nil client")
	}
	return newLocker(opts, func(l *Locker) store {
		return one{single.New(client, l.env, single.InboxName(l.cfg.prefix), func(err error) { l.cfg.traces.emit(nodeError, Event{Err: err}) })}
	})
}

// Client returns the client that was given to [New]. Adapters use it to send other commands to the same Redis. It is nil
// for a Locker of [NewRedLock].
func (l *Locker) Client() redis.UniversalClient {
	if s, ok := l.store.(one); ok {
		return s.Client
	}
	return nil
}

var errOneCall = invalid("WithReentryID is for one call: all calls of a Locker or an adapter would hold their locks together")

func newLocker(opts []Option, connect func(*Locker) store) (*Locker, error) {
	l := &Locker{cfg: defaults(), env: timing.NewEnv()}
	for _, o := range opts {
		if o == nil {
			return nil, invalid("nil option")
		}
		if err := o.apply(&l.cfg); err != nil {
			return nil, err
		}
	}
	l.store = connect(l)
	if err := l.cfg.check(l.store); err != nil {
		return nil, err
	}
	if l.cfg.reentryID != "" {
		return nil, errOneCall
	}
	l.cfg.waitSet = false
	l.sched = newScheduler(l)
	l.queues = queues{on: l.cfg.handovers > 0 || l.store.Several(), bound: l.cfg.handovers, within: l.cfg.handWithin, byKey: map[string]*queue{}}
	return l, nil
}

// Do acquires the lock, runs fn, and releases the lock when fn returns or panics. fn must use the context that it
// receives: it ends when the lock is lost, and [Held] finds the lock and its fencing token in it. After a loss fn may
// return any error, or none, since Do reports the loss. If the context ended for another reason, fn has to say so: Do
// does not add the context's error.
//
// Do returns the error of [Locker.Acquire], or else fn's error joined with that of [Lock.Release]. If it matches
// [ErrLost], fn may have run at the same time as another holder. An [ErrUnavailable] that does not come from fn means
// that the acquisition failed and fn did not run, or that fn ran under the lock and Redis did not confirm the release. To
// tell the two apart, have fn record that it ran. With [WithReleaseInBackground] the error contains only what is known
// without asking Redis.
func (l *Locker) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...CallOption) (err error) {
	if fn == nil {
		return invalid("Do(%q) without a function", key)
	}
	lock, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	defer func() {
		released := lock.Release(ctx)
		if err == nil || released != nil {
			err = errors.Join(err, released)
		}
	}()
	return fn(lock.Context(ctx))
}

// Acquire takes the lock and holds it until [Lock.Release]. While another holder has it, Acquire waits in line until its
// context ends or the time of [WithWait] is up. The first call that has to wait opens a connection on which all waiters
// of this Locker are notified; it stays open until Shutdown.
//
// ctx bounds the acquisition alone: it may end once Acquire has returned, and the lock stays. Work under the lock must
// use [Lock.Context], not ctx. [Locker.Do] makes that harder to get wrong.
//
// Errors:
//
//   - [ErrNotAcquired], a [*HeldError]: the wait ended while another holder had the lock.
//   - [ErrUnavailable]: at once if Redis refused in a way that a retry cannot mend, such as a wrong password; otherwise
//     at the end of the wait, or when Redis has been out of reach for a whole lease.
//   - [ErrSelfDeadlock], [ErrClosed] and [ErrInvalid].
//
// If ctx ended the wait, the error matches ctx.Err() too. After an error no lock stays behind in Redis, with one
// exception: a Redis that stalled for longer than a TTL, or 8 s if that is more, may still execute the request when it
// resumes, and then keeps the key for a lease. The call's place in line is given up in the background, so its turn may
// still come, and pass, a moment later.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...CallOption) (*Lock, error) {
	return l.acquire(ctx, key, opts, false)
}

// TryAcquire is like Acquire but does not wait for another holder, and does not jump the line either. It returns within
// ctx. If Redis does not answer or refuses connections, it fails within a quarter of the TTL, at most 1 s; with
// [NewRedLock] see [WithNodeTimeout]. On one Redis, [WithReplicaAcks] adds its timeout to that.
//
// Errors: those of Acquire, and [ErrInvalid] if WithWait is among opts. A [WithWait] given to New has no effect here.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...CallOption) (*Lock, error) {
	return l.acquire(ctx, key, opts, true)
}

// Check reports whether a key, or the name of a claim, and options can work together and with the options of l. It
// returns an [ErrInvalid] where [Locker.Acquire] or [Locker.Claim] would, and asks nothing of Redis. It is for adapters,
// which know both before they need a lock, and so it refuses [WithReentryID], which is for one call.
func (l *Locker) Check(key string, opts ...Option) error {
	for _, o := range opts {
		switch o.(type) {
		case CallOption, ClaimOption, nil:
		default:
			return invalid("an option for New, given to a call")
		}
	}
	c, err := configure(l, opts)
	if err != nil {
		return err
	}
	if c.reentryID != "" {
		return errOneCall
	}
	_, err = l.stored(key)
	return err
}

// Ping checks that Redis answers, by asking it as [Locker.Inspect] would. With several masters it asks each of them, and
// most have to answer. Call it when the program starts, so that a wrong address or password shows there and not with the
// first request. It writes nothing, so it does not reveal an ACL that forbids writes. It returns within ctx and within a
// quarter of the TTL, at most 1 s.
//
// Errors: [ErrUnavailable], with the reason if it is known, [ErrClosed], [ErrInvalid].
func (l *Locker) Ping(ctx context.Context) error {
	_, err := l.Inspect(ctx, "ping")
	if failed, ok := err.(*opError); ok {
		failed.act, failed.key = "ping", ""
	}
	return err
}

// stored is the key in Redis.
func (l *Locker) stored(key string) (protocol.Key, error) {
	if key == "" {
		return protocol.Key{}, invalid("empty key")
	}
	k, err := protocol.CheckKey(l.cfg.prefix + key)
	if err != nil {
		return k, invalid("%v", err)
	}
	return k, nil
}

// configure applies a call's options to the Locker's.
func configure[O Option](l *Locker, opts []O) (*config, error) {
	if len(opts) == 0 {
		return &l.cfg, nil
	}
	cfg := l.cfg
	for _, o := range opts {
		if any(o) == nil {
			return nil, invalid("nil option")
		}
		if err := o.apply(&cfg); err != nil {
			return nil, err
		}
	}
	return &cfg, cfg.check(l.store)
}

// Shutdown ends the Locker. New and waiting calls fail with [ErrClosed]. Held locks are renewed until they are released or
// lost. Shutdown returns nil once all of them are, and once all clean-ups are done; then no goroutine of the Locker is left.
// While Redis is unavailable, the clean-ups take up to the longest lease or 13 s, whichever is longer. Close the client after
// Shutdown has returned.
//
// If ctx ends first, the contexts of the remaining locks are cancelled with ErrClosed as the cause, and their leases are
// left to expire: Shutdown never frees a key while its handler may be running. Shutdown then returns an error that
// matches ctx.Err() and names the locks, or says that clean-ups go on. Commands under way at that moment end with the
// client's own timeouts.
func (l *Locker) Shutdown(ctx context.Context) error {
	if ctx == nil {
		return invalid("nil context")
	}
	l.env.Gate.Close()
	l.queues.close()
	l.store.Close()
	err := l.env.Gate.Wait(ctx)
	if err != nil {
		left := "clean-ups go on"
		if keys := l.sched.abandon(); len(keys) > 0 {
			left = "not released: " + listing(keys)
		}
		err = fmt.Errorf("holdfast: shutdown: %s: %w", left, err)
	}
	l.sched.stop()
	l.env.Gate.Abandon()
	return err
}

// listing names the first few of keys.
func listing(keys []string) string {
	const most = 8
	keys = slices.Sorted(slices.Values(keys))
	text := fmt.Sprintf("%q", keys[:min(most, len(keys))])
	if more := len(keys) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
