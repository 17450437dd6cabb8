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

// DoAll runs fn while it holds the locks of all keys, 1 to 64 of them: for a transfer between two accounts, say. Whatever
// the order of their keys, calls of DoAll never deadlock with each other.
//
// DoAll asks for all locks at once, and has them after one round trip if they are free. If some are held, it keeps those
// that come before the first held one in byte order, gives back the rest, and waits in line for that one. Then it asks
// for the rest again. So while it waits for a key it holds only smaller ones. [WithWait] bounds the waiting for all locks
// together; with WithWait(0) DoAll fails if any is held. The keys may be in different slots of a Cluster. A key that is
// named twice is locked once.
//
// fn's context carries all of the locks, for [Held] and for package sqlfence, and ends when one of them is lost. DoAll
// releases them when fn returns or panics.
//
// A deadlock is still possible if a call's context already holds a lock, as a call within fn does, and that lock's key is
// larger than one that the call waits for. WithWait or a deadline ends it.
//
// Errors: those of [Locker.Do], which name the key. If an acquisition failed, the other locks are given back, perhaps a
// moment after DoAll has returned. [ErrLost] can also mean that one lock was lost while DoAll waited for another, in
// which case fn did not run.
func (l *Locker) DoAll(ctx context.Context, keys []string, fn func(context.Context) error, opts ...CallOption) (err error) {
	if ctx == nil {
		return invalid("nil context")
	}
	if fn == nil {
		return invalid("DoAll(%q) without a function", keys)
	}
	s := &several{locker: l, ctx: ctx}
	if s.cfg, err = configure(l, opts); err != nil {
		return err
	}
	for _, key := range keys {
		k, err := l.stored(key)
		if err != nil {
			return err
		}
		s.keys = append(s.keys, k)
	}
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
	ran = true
	return fn(s.ctx)
}

// several are the locks of one DoAll. No two calls wait in a circle: each holds only locks of keys in front of the one that
// it waits for, so the call that waits for the last key of all waits for one that waits for nothing.
type several struct {
	locker *Locker
	cfg    *config
	keys   []protocol.Key  // in order
	locks  []*Lock         // of the first of them
	ctx    context.Context // that carries these
}

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
		}
		wait := s.cfg.wait
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
		if wait == 0 && refused != nil {
			return refused
		}
		lock, err := s.locker.take(s.ctx, s.keys[len(s.locks)], s.cfg, wait)
		if err != nil {
			return cmp.Or(s.lost(), err) // the loss of one ends the wait
		}
		if s.add(lock); len(s.locks) == len(s.keys) {
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
	each(len(rest), func(i int) { locks[i], errs[i] = s.locker.take(s.ctx, rest[i], s.cfg, 0) })
	var refused error
	for i, lock := range locks {
		switch {
		case lock == nil:
			refused = cmp.Or(refused, errs[i])
		case refused == nil:
			s.add(lock)
		default:
			s.locker.env.Go(func() { _ = lock.Release(s.locker.env.Gate.Over) })
		}
	}
	return refused
}

func (s *several) add(lock *Lock) {
	s.locks = append(s.locks, lock)
	s.ctx = lock.Context(s.ctx)
}

// lost is of the first lock that was, by the clock: DoAll may have to return now, and Err might ask Redis.
func (s *several) lost() error {
	for _, lock := range s.locks {
		if err := lock.hold.lapsed(); err != nil {
			return err
		}
	}
	return nil
}

func (s *several) release(ctx context.Context) (err error) {
	errs := make([]error, len(s.locks))
	each(len(s.locks), func(i int) { errs[i] = s.locks[i].Release(ctx) })
	for _, e := range errs {
		err = both(err, e)
	}
	return err
}

// each runs f for 0 to n-1 at once, on a goroutine each but for the first. A panic, of a hook, is the caller's, after all are
// through.
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
