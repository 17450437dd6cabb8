package interop

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "8") // most of it is waiting for leases to end
	}
	os.Exit(m.Run())
}

// env is one server and the programs on it.
type env struct {
	t      *testing.T
	key    string
	client func() *redis.Client
	rdb    *redis.Client // the rivals'
	// short is a lease to wait for the end of, though not too short for a loaded machine; long is one that does
	// not end by accident.
	short, long time.Duration
}

// eachServer runs fn in virtual time and on a real server.
func eachServer(t *testing.T, fn func(t *testing.T, e *env)) {
	t.Run("miniredis", func(t *testing.T) { inBubble(t, fn) })
	t.Run("server", func(t *testing.T) { onServer(t, servertest.Redis(t), fn) })
}

// eachRival does that for each rival; on the server each has a key of its own.
func eachRival(t *testing.T, fn func(t *testing.T, e *env, r rival)) {
	t.Parallel()
	each := func(t *testing.T, run func(t *testing.T, fn func(t *testing.T, e *env))) {
		for _, r := range rivals() {
			t.Run(r.Name, func(t *testing.T) { run(t, func(t *testing.T, e *env) { fn(t, e, r) }) })
		}
	}
	t.Run("miniredis", func(t *testing.T) { each(t, inBubble) })
	t.Run("server", func(t *testing.T) {
		s := servertest.Redis(t)
		each(t, func(t *testing.T, fn func(t *testing.T, e *env)) { onServer(t, s, fn) })
	})
}

func inBubble(t *testing.T, fn func(t *testing.T, e *env)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := servertest.NewBubble(t)
		fn(t, newEnv(t, func() *redis.Client { return b.Client() }))
	})
}

func onServer(t *testing.T, s *servertest.Server, fn func(t *testing.T, e *env)) {
	t.Parallel()
	e := newEnv(t, func() *redis.Client { return s.Client() })
	e.short = 2 * time.Second // of a machine that may be busy
	fn(t, e)
}

func newEnv(t *testing.T, client func() *redis.Client) *env {
	return &env{t: t, key: "order:" + t.Name(), client: client, rdb: client(), short: time.Second, long: time.Minute}
}

// locker returns a Locker with a client of its own, as another process has. At the end of the test nothing of
// it may be left.
func (e *env) locker(opts ...holdfast.Option) *holdfast.Locker {
	e.t.Helper()
	l, err := holdfast.New(e.client(), opts...)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { e.shutdown(l) })
	return l
}

func (e *env) shutdown(l *holdfast.Locker) {
	e.t.Helper()
	patience := time.Minute
	if e.t.Failed() {
		patience = 0 // a lock is still held, likely
	}
	ctx, cancel := context.WithTimeout(background, patience)
	defer cancel()
	if err := l.Shutdown(ctx); err != nil {
		e.t.Errorf("Shutdown: %v", err)
	}
}

var background = context.Background()

func (e *env) acquire(l *holdfast.Locker, opts ...holdfast.CallOption) *holdfast.Lock {
	e.t.Helper()
	lock, err := l.TryAcquire(background, e.key, opts...)
	for end := time.Now().Add(time.Minute); errors.Is(err, holdfast.ErrUnavailable) && time.Now().Before(end); {
		// A busy machine was too late for so short a lease. What came of that may be there for a while yet.
		lock, err = l.Acquire(background, e.key, opts...)
	}
	if err != nil {
		e.t.Fatalf("TryAcquire: %v", err)
	}
	return lock
}

func (e *env) release(lock *holdfast.Lock) {
	e.t.Helper()
	if err := lock.Release(background); err != nil {
		e.t.Errorf("Release: %v", err)
	}
}

func (e *env) obtain(r rival, ttl time.Duration) peers.Lock {
	e.t.Helper()
	h, err := r.obtain(background, e.rdb, e.key, ttl)
	if err != nil {
		e.t.Fatalf("%s: obtain: %v", r.Name, err)
	}
	return h
}

func (e *env) wantRefused(r rival) {
	e.t.Helper()
	if _, err := r.obtain(background, e.rdb, e.key, e.long); !errors.Is(err, peers.ErrHeld) {
		e.t.Errorf("%s beside our lock: got %v, want it refused", r.Name, err)
	}
}

// wantHeld checks a refusal of ours: by a holder without a label whose lease of ttl began after since.
func (e *env) wantHeld(err error, ttl time.Duration, since time.Time) {
	e.t.Helper()
	var held *holdfast.HeldError
	if !errors.As(err, &held) || !errors.Is(err, holdfast.ErrNotAcquired) {
		e.t.Fatalf("got %v, want a *HeldError", err)
	}
	if held.Key != e.key || held.Label != "" {
		e.t.Errorf("got key %q and label %q, want %q and none", held.Key, held.Label, e.key)
	}
	e.wantLeft(held.TimeLeft, ttl, since)
}

// wantLeft allows for Redis' granularity of 1 ms, at both ends of a lease.
func (e *env) wantLeft(left, ttl time.Duration, since time.Time) {
	e.t.Helper()
	if least := ttl - time.Since(since) - 2*time.Millisecond; left < least || left > ttl {
		e.t.Errorf("time left: got %v, want %v to %v", left, least, ttl)
	}
}

// stored is the key as Redis had it a moment after at.
type stored struct {
	at    time.Time
	value string
	ttl   time.Duration
}

func (e *env) stored() stored {
	e.t.Helper()
	at := time.Now()
	value, err := e.rdb.Get(background, e.key).Result()
	if err != nil {
		e.t.Fatalf("GET: %v", err)
	}
	ttl, err := e.rdb.PTTL(background, e.key).Result()
	if err != nil {
		e.t.Fatalf("PTTL: %v", err)
	}
	return stored{at, value, ttl}
}

// wantUntouched checks that the key is as it was, but for the time that passed.
func (e *env) wantUntouched(before stored) {
	e.t.Helper()
	now := e.stored()
	if now.value != before.value {
		e.t.Errorf("value: got %q, want %q", now.value, before.value)
	}
	e.wantLeft(now.ttl, before.ttl, before.at)
}

// take frees the key behind its holder's back and has r obtain it.
func (e *env) take(r rival) peers.Lock {
	e.t.Helper()
	if err := e.rdb.Del(background, e.key).Err(); err != nil {
		e.t.Fatalf("DEL: %v", err)
	}
	return e.obtain(r, e.long)
}

// await calls Acquire on a goroutine and returns once it waits.
func (e *env) await(l *holdfast.Locker, opts ...holdfast.CallOption) <-chan *holdfast.Lock {
	e.t.Helper()
	waiting := make(chan struct{})
	got := make(chan *holdfast.Lock, 1)
	trace := &holdfast.Trace{Waiting: func(holdfast.Event) { close(waiting) }}
	go func() {
		lock, err := l.Acquire(background, e.key, append(opts, holdfast.WithTrace(trace))...)
		if err != nil {
			e.t.Errorf("Acquire: %v", err)
		}
		got <- lock
	}()
	select {
	case <-waiting:
	case lock := <-got:
		e.t.Fatalf("Acquire beside another holder: got %v, want it to wait", lock)
	}
	return got
}
