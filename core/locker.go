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

// Locker takes locks in one Redis. It is safe for concurrent use; a process needs one per Redis. Make it
// with [New]; the zero value does not work.
type Locker struct {
	cfg     config
	env     *timing.Env
	store   store
	sched   *scheduler
	queues  queues
	passing passing
}

// New makes a Locker on one Redis (or Valkey), on a Sentinel-managed master or on a Cluster. It sends nothing
// yet. The client stays the caller's: it may be shared, and must not be closed before [Locker.Shutdown] has
// returned. Its timeouts and retries do not matter for correctness, as long as DialTimeout and PoolTimeout are
// below a minute. Calls share connections: as a rule they leave a quarter of the pool of a *redis.Client to others,
// while Redis answers.
//
// Set ContextTimeoutEnabled in the options of a *redis.Client to save a free lock some microseconds: then a call that is
// alone sends its command itself instead of leaving that to another goroutine. A call whose context is cancelled before its
// deadline may then return up to 250 ms later where Redis is silent.
//
// It returns an [ErrInvalid] for a nil client and for options that cannot work.
func New(client redis.UniversalClient, opts ...Option) (*Locker, error) {
	if client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil() {
		return nil, invalid("nil client")
	}
	return newLocker(opts, func(l *Locker) store {
		return one{single.New(client, l.env, single.InboxName(l.cfg.prefix), func(err error) { l.cfg.traces.emit(nodeError, Event{Err: err}) })}
	})
}

// Client is the client that was given to [New], for adapters that have more to ask of the same Redis. It is nil for a
// Locker of [NewRedLock].
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

// Do runs fn while it holds the lock: it acquires, hands fn the lock's context and releases when fn returns
// or panics. fn must use that context, which ends when the lock is lost, and which [Held] finds the
// fencing token in.
//
// The error is that of [Locker.Acquire], or fn's joined with that of [Lock.Release]. An [ErrLost] says that fn may have run
// beside another holder; an [ErrUnavailable] after fn returned nil that the work was done while the lock was held, but Redis
// did not confirm the release. An ErrUnavailable can also come from the acquisition, and then fn did not run: to tell the
// two apart, have fn note that it ran. With [WithReleaseInBackground] the error has only what is known without asking Redis.
//
// Once its context has ended, fn may return ctx.Err() or what else it likes: the error of Do tells of a loss in any case.
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

// Acquire takes the lock and keeps it until [Lock.Release]. While somebody else holds it, Acquire waits in line until
// the context ends or [WithWait] is over. The first call that has to wait opens one connection for all of them, on
// which grants arrive, until Shutdown.
//
// ctx bounds the acquisition alone: it may end once Acquire has returned, and the lock stays. Work under the lock must use
// [Lock.Context], not ctx. Prefer [Locker.Do]: name its function's parameter ctx, and it hides the other one.
//
// Errors: [ErrNotAcquired] (a [*HeldError]) when the wait ended and somebody else had the lock; [ErrUnavailable] at once for a
// refusal that repeating cannot mend, such as a wrong password, else when it was out of reach for a whole lease, or at the end
// of the wait; [ErrSelfDeadlock]; [ErrClosed]; [ErrInvalid]. Where ctx ended the wait, the error matches ctx.Err() too. After
// an error no lock stays behind in Redis, but for one case: where Redis stood still for longer than a TTL, or 8 s if that is
// more, it may execute the request when it goes on, and keep the key for a lease. The call's place in line is given up in the
// background: its turn may still come, and pass, a moment later.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...CallOption) (*Lock, error) {
	return l.acquire(ctx, key, opts, false)
}

// TryAcquire is Acquire without waiting for another holder, and does not jump the line. It returns
// within ctx and, where Redis does not answer or refuses connections, within a quarter of the TTL, at most 1 s; with
// [NewRedLock] see [WithNodeTimeout]; [WithReplicaAcks] adds its timeout.
//
// Errors: those of Acquire, and an [ErrInvalid] if given a [WithWait]; one given to New is ignored.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...CallOption) (*Lock, error) {
	return l.acquire(ctx, key, opts, true)
}

// Check judges a key, or the name of a claim, and options, as [Locker.Acquire] or [Locker.Claim] would: against each other and
// those of l, without a network. It is for adapters, which know both before they need a lock. It refuses [WithReentryID], which
// is for one call: all that an adapter makes would hold their locks together. Its error is an [ErrInvalid].
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

// Ping asks Redis, on several masters each of them, as [Locker.Inspect] would. It is for the start of a program: a wrong
// address or password shows there and not with the first request. It writes nothing, so it does not show what an ACL forbids
// to write. It returns within ctx and within a quarter of the TTL, at most 1 s.
//
// Errors: [ErrUnavailable], which says why where that is known; [ErrClosed], [ErrInvalid].
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

// Shutdown ends the Locker. New calls and waiting ones fail with [ErrClosed]; held locks go on being renewed until they are
// released or lost. It returns nil once every lock is released or lost and all clean-ups are done, and then no goroutine of
// the Locker is left. While Redis is away the clean-ups go on for up to a TTL or 13 s, whichever is longer. Close the client
// afterwards, not before.
//
// If ctx ends first, the contexts of the remaining locks are cancelled with [ErrClosed] as the cause and their leases run
// out by themselves: Shutdown never frees a key under a live handler. Then it returns an error that matches ctx.Err() and
// names the locks, or says that clean-ups go on. Calls that the client still has under way at that moment end with the
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
