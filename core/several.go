package holdfast

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

const maxKeys = 64

// DoAll runs fn while it holds the locks of all keys, 1 to 64 of them. Whatever the order of their keys, calls of DoAll
// never deadlock with each other. The keys may be in different slots of a Cluster. A key that is named twice is locked
// once.
//
// DoAll asks for all locks at once, which takes one round trip if they are free. If some are held, it keeps those that
// come before the first held one in byte order, gives back the rest, waits in line for that one, and asks for the rest
// again. So let the key with the most room come last: "by-user:7", then "provider:x". A lock that ends meanwhile, even
// by [WithMaxHold], is taken again. [WithWait] bounds the waiting for all locks together, and [OnKey] has options for
// one of them.
//
// fn's context carries all of the locks, the largest key innermost, and ends when one of them is lost. DoAll releases
// them when fn returns or panics.
//
// A deadlock is still possible if the context already holds a lock, as within fn, whose key is larger than one that
// DoAll waits for. WithWait or a deadline ends it.
//
// Errors: those of [Locker.Do]. If an acquisition failed, the other locks are given back, perhaps a moment after DoAll
// has returned.
func (l *Locker) DoAll(ctx context.Context, keys []string, fn func(context.Context) error, opts ...CallOption) (err error) {
	if ctx == nil {
		return invalid("nil context")
	}
	if fn == nil {
		return invalid("DoAll(%q) without a function", keys)
	}
	s := &several{locker: l, outer: ctx, ctx: ctx}
	for _, key := range keys {
		k, err := l.stored(key)
		if err != nil {
			return err
		}
		s.keys = append(s.keys, k)
		own := l.keyed[key] != nil || names(opts, key)
		if !own && s.cfg != nil {
			continue
		}
		cfg, err := configure(l, opts, key, keys...)
		if err != nil {
			return err
		}
		s.wait = cfg.wait
		if cfg.progress > 0 {
			its := *cfg
			its.gathers, cfg = true, &its
		}
		switch {
		case !own:
			s.cfg = cfg
		case s.own == nil:
			s.own = map[string]*config{k.Lock: cfg}
		default:
			s.own[k.Lock] = cfg
		}
	}
	// By bytes, and by nothing that calls may see differently, such as the limits that they name: see several.
	slices.SortFunc(s.keys, func(a, b protocol.Key) int { return cmp.Compare(a.Lock, b.Lock) })
	s.keys = slices.CompactFunc(s.keys, func(a, b protocol.Key) bool { return a.Lock == b.Lock })
	if n := len(s.keys); n == 0 || n > maxKeys {
		return invalid("DoAll with %d keys: want 1 to %d", n, maxKeys)
	}
	ran := false
	defer func() {
		if released := s.release(ctx); ran {
			err = both(err, released)
		}
	}()
	if err := s.take(); err != nil {
		return err
	}
	s.begin()
	ran = true
	return fn(s.ctx)
}

// several are the locks of one DoAll. No two calls wait in a circle: a call waits for a key with smaller keys only, so among
// calls that wait for each other, the one that waits for the largest key waits for a call that waits for nothing. For that all
// calls must agree on the order, whatever else they disagree on: with an order by limits, a call that takes a lock alone would
// wait in a circle with one that takes it shared.
type several struct {
	locker *Locker
	cfg    *config            // of the keys that no OnKey names; nil for none
	own    map[string]*config // of the others, by the key in Redis
	wait   time.Duration      // of all
	keys   []protocol.Key     // in order
	outer  context.Context
	locks  []*Lock         // of the first of keys
	ctx    context.Context // that carries these
}

// of returns the config of one key.
func (s *several) of(k protocol.Key) *config { return cmp.Or(s.own[k.Lock], s.cfg) }

func (s *several) take() error {
	began := s.locker.env.Now().Mono
	until := time.Duration(-1) // the end of the wait; before the first refusal it has not begun
	for {
		var refused error
		rest := s.keys[len(s.locks):]
		if len(rest) > 1 {
			if refused = s.try(rest); refused == nil {
				return nil
			}
			if s.restart() && inTime(s.outer).Err() == nil {
				continue
			}
		}
		wait := s.wait
		now := s.locker.env.Now().Mono
		if until < 0 {
			until = now + wait
			if refused != nil && !errors.Is(refused, ErrNotAcquired) {
				until = began + wait // Redis has been given that time
			}
		}
		if wait > 0 {
			wait = max(0, until-now)
		}
		next := s.keys[len(s.locks)]
		if wait == 0 && refused != nil {
			s.of(next).traces.emit(refusal, Event{Key: next.Lock, Elapsed: now - began, Err: refused})
			return refused
		}
		lock, err := s.locker.take(s.ctx, next, s.of(next), wait, false)
		if err == nil {
			s.add(lock)
		}
		switch again := s.restart(); {
		case again && inTime(s.outer).Err() == nil:
		case err != nil:
			return err
		case len(s.locks) == len(s.keys):
			return nil
		}
	}
}

// try asks for all keys of rest and keeps what comes before the first that is refused, with its error.
func (s *several) try(rest []protocol.Key) error {
	locks, errs := make([]*Lock, len(rest)), make([]error, len(rest))
	defer func() {
		if p := recover(); p != nil { // of a hook
			s.locks = append(s.locks, slices.DeleteFunc(locks, func(lk *Lock) bool { return lk == nil })...) // to be released
			panic(p)
		}
	}()
	each(len(rest), func(i int) { locks[i], errs[i] = s.locker.take(s.ctx, rest[i], s.of(rest[i]), 0, true) })
	var refused error
	for i, lock := range locks {
		switch {
		case lock == nil:
			refused = cmp.Or(refused, errs[i])
		case refused == nil:
			s.add(lock)
		default:
			s.giveBack(lock)
		}
	}
	return refused
}

func (s *several) giveBack(lock *Lock) {
	s.locker.env.Go(func() { _ = lock.Release(s.locker.env.Gate.Over) })
}

func (s *several) add(lock *Lock) {
	s.locks = append(s.locks, lock)
	s.ctx = lock.within(s.ctx, s)
}

// begin has the time of WithProgress begin for all locks at once. Before, a wait for the last one would have ended the first.
func (s *several) begin() {
	for _, lock := range s.locks {
		if h := lock.hold; h.lease.progress != nil && h.lease.progress.begin(h.locker.env.Now().Mono) {
			h.locker.sched.hasten(h)
		}
	}
}

// restart reports whether a lock was lost, which ends the wait for another one. It then keeps the locks in front of that
// one, and gives back those behind it, because the call will wait for it. It goes by the clock: DoAll may have to return
// now, and Err might ask Redis.
func (s *several) restart() bool {
	i := slices.IndexFunc(s.locks, func(lk *Lock) bool { return lk.hold.lapsed() != nil })
	if i < 0 {
		return false
	}
	kept, back := s.locks[:i:i], s.locks[i:]
	s.locks, s.ctx = nil, s.outer
	for _, lock := range kept {
		s.add(lock)
	}
	for _, lock := range back {
		s.giveBack(lock)
	}
	return true
}

func (s *several) release(ctx context.Context) (err error) {
	errs := make([]error, len(s.locks))
	each(len(s.locks), func(i int) { errs[i] = s.locks[i].Release(ctx) })
	for _, e := range errs {
		err = both(err, e)
	}
	return err
}

// each runs f for 0 to n-1 at once, f(0) on the caller's goroutine. If one of them panics, as a hook may, each panics with
// the same value after all have returned.
func each(n int, f func(int)) {
	var all sync.WaitGroup
	panics := make(chan any, n)
	run := func(i int) {
		defer func() {
			if p := recover(); p != nil {
				panics <- p
			}
		}()
		f(i)
	}
	for i := 1; i < n; i++ {
		all.Go(func() { run(i) })
	}
	if n > 0 {
		run(0)
	}
	all.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
	}
}
