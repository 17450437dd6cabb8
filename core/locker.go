package holdfast

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
	"github.com/holdfast-go/holdfast/core/internal/single"
	"github.com/holdfast-go/holdfast/core/internal/store"
	"github.com/holdfast-go/holdfast/core/internal/timing"
	"github.com/redis/go-redis/v9"
)

// A Locker takes locks in one Redis. It is safe for concurrent use, and a process needs one for each Redis. Make it
// with [New]; the zero value does not work.
type Locker struct {
	cfg        config
	keyed      map[string]*config // of the keys that an OnKey given to New names; nil for none
	env        *timing.Env
	store      store.Store
	one        *single.Redis // the store, if that is one Redis
	own        func(protocol.Key, single.Want) *stake
	sched      *scheduler
	turns      turns
	background background
}

// New makes a Locker on one Redis or Valkey server, a master that Sentinel manages, a Cluster, or a redis.Ring, which
// can forget locks when its shards come and go. New sends nothing yet, see [Locker.Ping]. It returns an [ErrInvalid]
// for a nil client and for options that can never work.
//
// The client remains the caller's. It may be shared, and must stay open until [Locker.Shutdown] has returned. Its
// timeouts and retries do not matter for correctness, as long as DialTimeout and PoolTimeout are below a minute. Add
// its hooks before the first call. A Locker uses at most three quarters of its pool: see core/limits.md.
//
// A call whose context is cancelled before its deadline may return up to 250 ms late while Redis does not answer.
func New(client redis.UniversalClient, opts ...Option) (*Locker, error) {
	if client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil() {
		return nil, invalid("nil client")
	}
	return newLocker(opts, func(l *Locker) {
		l.one = single.New(client, l.env, single.InboxName(l.cfg.prefix), func(err error) { l.report("", err) })
		l.store, l.own = l.one, l.ownOne
	})
}

func init() {
	store.Of = func(l any) store.Locker { return of(l.(*Locker)) }
	store.InTime = inTime
	store.Refused = func(err error) any { return option(func(*config) error { return err }) }
	store.New = func(opts any, connect func(store.Locker) store.Maker) (any, error) {
		return newLocker(opts.([]Option), func(l *Locker) {
			m := connect(of(l))
			l.store, l.own = m, func(key protocol.Key, want single.Want) *stake { return &stake{Owner: m.Own(key, want)} }
		})
	}
}

func of(l *Locker) store.Locker {
	return store.Locker{Env: l.env, Prefix: l.cfg.prefix, TTL: l.cfg.ttl, Report: l.report, Store: l.store}
}

func (l *Locker) report(key string, err error) {
	l.cfg.traces.emit(nodeError, Event{Key: key, Err: err})
}

// Client returns the client that was given to [New], for adapters that send other commands to the same Redis. It is nil
// for a Locker on several masters.
func (l *Locker) Client() redis.UniversalClient {
	if l.one == nil {
		return nil
	}
	return l.one.Client
}

var errOneCall = invalid("WithReentryID is for one call: all calls of a Locker or an adapter would hold their locks together")

func newLocker(opts []Option, connect func(*Locker)) (*Locker, error) {
	l := &Locker{cfg: defaults(), env: timing.NewEnv()}
	var named []*onKey
	for _, o := range opts {
		if o == nil {
			return nil, invalid("nil option")
		}
		if k, ok := o.(*onKey); ok {
			named = append(named, k)
		} else if err := o.apply(&l.cfg); err != nil {
			return nil, err
		}
	}
	connect(l)
	if err := l.cfg.check(l); err != nil {
		return nil, err
	}
	if l.cfg.reentryID != "" {
		return nil, errOneCall
	}
	l.cfg.waitSet = false
	if err := l.name(named); err != nil {
		return nil, err
	}
	l.sched = newScheduler(l)
	// Two calls of one process would take votes from each other on several masters.
	l.turns = turns{env: l.env, on: l.cfg.handovers > 0 || l.one == nil, bound: l.cfg.handovers, within: l.cfg.handWithin, rows: map[string]*row{}, shares: map[string]map[*row]struct{}{}}
	return l, nil
}

// Do acquires the lock, runs fn, and releases the lock when fn returns or panics. fn must use the context that it
// receives: it ends when the lock is lost, and [Held] finds the lock in it. fn need not report a loss, since Do does;
// if its context ended for another reason, fn has to say so.
//
// Do returns the error of [Locker.Acquire], or else fn's error joined with that of [Lock.Release]. An [ErrUnavailable]
// that does not come from fn means that fn did not run, or that fn ran and Redis did not confirm the release. To tell
// the two apart, have fn record that it ran.
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

// Acquire takes the lock and holds it until [Lock.Release]. While another holder has it, Acquire waits in line until
// its context ends or the time of [WithWait] is up.
//
// ctx bounds the acquisition alone: it may end once Acquire has returned, and the lock stays. Work under the lock
// must use [Lock.Context], not ctx.
//
// Errors: [ErrNotAcquired], as a [*HeldError], [ErrUnavailable], [ErrSelfDeadlock], [ErrClosed] and [ErrInvalid].
// ErrUnavailable comes at once if Redis refused in a way that a retry cannot mend, such as a wrong password; otherwise
// at the end of the wait, or when Redis has been out of reach for a whole lease. After an error no lock stays behind in
// Redis, unless Redis stalls for longer than a minute and a TTL: see core/limits.md.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...CallOption) (*Lock, error) {
	return l.acquire(ctx, key, opts, false)
}

// TryAcquire is like Acquire but does not wait for another holder, and does not jump the line either. If Redis does not
// answer, it fails after the patience of [WithTTL], to which [WithReplicaAcks] adds its timeout.
//
// A limiter that lets calls through in an outage, but otherwise has them wait, calls TryAcquire, and Acquire only if the
// lock is held: Acquire alone would notice the outage after a whole TTL.
//
// Errors: those of Acquire, and [ErrInvalid] if [WithWait] is among opts. One given to New has no effect here.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...CallOption) (*Lock, error) {
	return l.acquire(ctx, key, opts, true)
}

// Check returns an [ErrInvalid] where [Locker.Acquire] would for this key and these options, and asks nothing of Redis.
// It is for adapters, and so it refuses [WithReentryID], which is for one call.
func (l *Locker) Check(key string, opts ...CallOption) error {
	c, err := configure(l, opts, key)
	if err != nil {
		return err
	}
	if c.reentryID != "" {
		return errOneCall
	}
	_, err = l.stored(key)
	return err
}

// Ping checks that Redis answers within ctx and the patience of [WithTTL], and is not too old for holdfast; of
// several masters, that most do. Call it when the program starts, so that a wrong address or password shows there. It
// writes nothing, so it does not reveal an ACL that forbids writes. If nobody listens at the client's address, Ping
// fails at once, and does not wait for a restart as Acquire does.
//
// Errors: [ErrUnavailable], [ErrClosed], [ErrInvalid].
func (l *Locker) Ping(ctx context.Context) error {
	sweep := redisconn.NewSweep()
	sweep.Knock = true
	_, errs := l.look(ctx, protocol.Ping, []string{"ping"}, sweep)
	if failed, ok := errs[0].(*opError); ok {
		failed.act, failed.key = "ping", ""
	}
	return errs[0]
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

// Shutdown ends the Locker. New and waiting calls fail with [ErrClosed]. Held locks are renewed until they are released
// or lost. Shutdown returns nil once all of them are, and once all clean-ups are done; then no goroutine of the Locker
// is left, and the client can be closed. While Redis is unavailable, the clean-ups take up to the longest lease or 13
// s, whichever is longer.
//
// If ctx ends first, the contexts of the remaining locks are cancelled with ErrClosed as the cause, and their leases
// are left to expire: Shutdown never frees a key while its handler may be running. Its error then matches ctx.Err() and
// names the locks, if any.
func (l *Locker) Shutdown(ctx context.Context) error {
	if ctx == nil {
		return invalid("nil context")
	}
	l.env.Gate.Close()
	l.turns.close()
	l.store.Close(false)
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
	l.store.Close(true)
	return err
}
