package main

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// bed is what one run of a scenario lies on: the servers, links and lockers that it asks for, which end with it.
type bed struct {
	*servertest.Program
	lib library
	// patience is how long the scenario waits for what has to come in the end.
	patience time.Duration
	key      string // in Redis
	proxies  []*servertest.FaultProxy
}

// perform runs fn, and then ends what the bed has.
func (b *bed) perform(fn func()) error {
	defer b.End()
	return b.Do(fn)
}

const order = "order:42"

// long is a lease that does not end within a scenario.
const long = time.Minute

// tryFor is the bound of calls that are not meant to meet it. It is beyond all leases, see theirs.take.
const tryFor = 2 * time.Minute

func (b *bed) server() *servertest.Server { return servertest.Redis(b) }

func (b *bed) proxy(s *servertest.Server) *servertest.FaultProxy {
	p := servertest.Proxy(b, s.Addr())
	b.proxies = append(b.proxies, p)
	return p
}

// open returns a locker that has used its connections and scripts before, as one has that did not start just now.
func (b *bed) open(s settings) locker {
	l, err := b.lib.open(s)
	if err != nil {
		b.Fatalf("open %s: %v", b.lib.name, err)
	}
	b.Cleanup(func() {
		for _, p := range b.proxies { // what is under way would have go-redis v9.19 wait for ever when it closes
			p.Reset()
			p.Heal()
		}
		l.close()
	})
	b.warm(l)
	return l
}

func (b *bed) warm(l locker) {
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	h := b.persist(ctx, l, "warm")
	for h.release(ctx) != nil && ctx.Err() == nil { // the releasing script is to be there too
		h = b.persist(ctx, l, "warm")
	}
}

// persist takes a lock that is free, or will be. The timeouts that come with short leases are short, and the machine
// may be busy.
func (b *bed) persist(ctx context.Context, l locker, key string) lock {
	for {
		h, err := l.try(ctx, key)
		if err == nil {
			return h
		}
		if ctx.Err() != nil {
			b.Fatalf("%s: %s, which is free: %v", b.lib.name, key, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// take has l take the lock, which is free.
func (b *bed) take(l locker) lock {
	ctx, cancel := context.WithTimeout(context.Background(), tryFor)
	defer cancel()
	h := b.persist(ctx, l, order)
	b.keep(h)
	return h
}

// keep releases a lock with the scenario, as lockers wait for that when they are closed.
func (b *bed) keep(h lock) {
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = h.release(ctx)
	})
}

// client goes straight to the server.
func (b *bed) client(s *servertest.Server) *redis.Client { return s.Client() }

// stored is the value of the lock's key, "" where there is none.
func (b *bed) stored(rdb *redis.Client) string {
	value, err := rdb.Get(context.Background(), b.key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		b.Fatalf("GET: %v", err)
	}
	return value
}

// freed waits for the key to go.
func (b *bed) freed(rdb *redis.Client) bool {
	return b.until(func() bool { return b.stored(rdb) == "" })
}

// until polls, for the scenario's patience at most.
func (b *bed) until(fn func() bool) bool {
	for end := time.Now().Add(b.patience); ; {
		if fn() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// mentions is whether a command names the lock's key.
func (b *bed) mentions(args []string) bool { return slices.Contains(args[1:], b.key) }

// once judges the first command from now on that names the key; the others pass.
func (b *bed) once(p *servertest.FaultProxy, v servertest.Verdict) (judged func() bool) {
	var done atomic.Bool
	p.OnCommand(func(args []string) servertest.Verdict {
		if b.mentions(args) && done.CompareAndSwap(false, true) {
			return v
		}
		return servertest.Pass
	})
	return done.Load
}

// within runs fn and reports whether it returned in time. If it did not it goes on beside the scenario. Time is
// counted in naps, as a machine that is too busy for anything does not nap either.
func (b *bed) within(d time.Duration, fn func()) (time.Duration, bool) {
	const nap = 100 * time.Millisecond
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	for range d / nap {
		select {
		case <-done:
			return time.Since(start), true
		case <-time.After(nap):
		}
	}
	return time.Since(start), false
}
