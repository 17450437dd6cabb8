package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// crowd is how many calls there are at once where there are many.
const crowd = 100

type scenario struct {
	name string
	play func(*stage) error
}

var scenarios = []scenario{
	{"WorkHasTheLock", hasTheLock},
	{"OneAtATime", oneAtATime},
	{"NamesDiffer", namesDiffer},
	{"EmptyNameIsRefused", emptyName},
	{"BusyIsRefused", busyIsRefused},
	{"LeaseIsRenewed", leaseIsRenewed},
	{"PanicReleases", panicReleases},
	{"CallerLeavesWhileWaiting", leavesWhileWaiting},
	{"CallerLeavesWhileWorking", leavesWhileWorking},
	{"LossIsReported", lossIsReported},
	{"LossAtTheEndIsReported", lossAtTheEnd},
	{"OutageAtTheEndIsNoRefusal", outageAtTheEnd},
	{"OutageIsRefused", func(s *stage) error { return outage(s, down) }},
	{"HangIsRefused", func(s *stage) error { return outage(s, hung) }},
	{"ShutdownWaitsAndRefuses", shutdown},
}

// hasTheLock: the lock is held while work runs, and free afterwards; the context of the work carries it and no other one.
func hasTheLock(s *stage) error {
	seen := make(chan error, 1)
	r, err := s.replica(func(ctx context.Context, name string) { seen <- s.holds(ctx, name) })
	if err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "a"} { // a framework may use the context of a call for the next one
		if err := <-r.insist(context.Background(), name); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if err := <-seen; err != nil {
			return err
		}
		if s.redis.Exists(s.Key(name)) {
			return fmt.Errorf("the lock of %q is held after its work", name)
		}
	}
	return s.clean(s.Key("a"))
}

// holds returns an error unless the work of name has its lock.
func (s *stage) holds(ctx context.Context, name string) error {
	if !s.redis.Exists(s.Key(name)) {
		return fmt.Errorf("work of %q runs without the lock of %q", name, s.Key(name))
	}
	if s.NoLock {
		return nil
	}
	locks := holdfast.Held(ctx)
	if len(locks) != 1 || locks[0].Key() != s.Key(name) || locks[0].Token() == 0 {
		return fmt.Errorf("the context of %q carries %d locks, want that of %q with a token", name, len(locks), s.Key(name))
	}
	return ctx.Err()
}

// oneAtATime: units of work of one name on three replicas never run together, all run, and their tokens rise.
func oneAtATime(s *stage) error {
	var mu sync.Mutex
	var inside, most, ran int
	var last int64
	rise := true
	work := func(ctx context.Context, _ string) {
		mu.Lock()
		inside++
		ran++
		most = max(most, inside)
		for _, lock := range holdfast.Held(ctx) {
			rise = rise && lock.Token() > last
			last = lock.Token()
		}
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		inside--
		mu.Unlock()
	}
	const each = 10
	var ends []<-chan error
	for range 3 {
		r, err := s.replica(work)
		if err != nil {
			return err
		}
		for range each {
			ends = append(ends, r.insist(context.Background(), "a"))
		}
	}
	for _, end := range ends {
		if err := <-end; err != nil {
			return err
		}
	}
	switch {
	case most > 1:
		return fmt.Errorf("%d units of work ran at the same time", most)
	case ran != 3*each:
		return fmt.Errorf("work was called %d times for %d calls", ran, 3*each)
	case !rise:
		return errors.New("a token is not larger than that of the work before")
	}
	return s.clean(s.Key("a"))
}

// names are easily mistaken for each other by what joins, splits or unescapes them.
var names = []string{"a", "A", "a:b", "a%3Ab", "a/b", "a b", "a+b", "{a}", "{a", "a}", "é", "e\u0301", "a:~fence", strings.Repeat("a", 300), strings.Repeat("a", 301)}

// namesDiffer: work of different names runs at the same time, each under its own lock.
func namesDiffer(s *stage) error {
	g := newGate()
	defer g.open()
	var wrong sync.Map
	r, err := s.replica(func(ctx context.Context, name string) {
		if err := s.holds(ctx, name); err != nil {
			wrong.Store(name, err)
		}
		g.work(ctx, name)
	})
	if err != nil {
		return err
	}
	var ends []<-chan error
	for i, name := range names {
		end := r.begin(context.Background(), name)
		select {
		case <-g.entered:
		case err := <-end:
			return fmt.Errorf("%.40q did not run beside %.40q: %w", name, names[:i], err)
		case <-time.After(patience):
			return fmt.Errorf("%.40q waits for one of %.40q", name, names[:i])
		}
		ends = append(ends, end)
	}
	g.open()
	for _, end := range ends {
		if err := <-end; err != nil {
			return err
		}
	}
	wrong.Range(func(_, e any) bool { err = e.(error); return false })
	return err
}

// emptyName: work that nothing names is refused, or all of it would have one lock.
func emptyName(s *stage) error {
	var called atomic.Int64
	r, err := s.replica(func(context.Context, string) { called.Add(1) })
	if err != nil {
		return err
	}
	err, late := soon(r.begin(context.Background(), ""), "a call without a name")
	if late == nil && (err == nil || called.Load() > 0) {
		late = fmt.Errorf("a call without a name: got %v, and work was called %d times", err, called.Load())
	}
	return late
}

// busyIsRefused: while another program holds the key, work is not called, and afterwards it is.
func busyIsRefused(s *stage) error {
	var called atomic.Int64
	r, err := s.replica(func(context.Context, string) { called.Add(1) })
	if err != nil {
		return err
	}
	other, err := s.locker()
	if err != nil {
		return err
	}
	lock, err := other.Acquire(context.Background(), s.Key("a"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lease) // for an adapter that waits
	defer cancel()
	err, late := soon(r.begin(ctx, "a"), "a call for a busy lock")
	switch {
	case late != nil:
		return late
	case !errors.Is(err, holdfast.ErrNotAcquired):
		return fmt.Errorf("a busy lock: got %v, want ErrNotAcquired", err)
	case called.Load() > 0:
		return errors.New("work was called without the lock, which another program holds")
	}
	if err := lock.Release(context.Background()); err != nil {
		return err
	}
	if err := <-r.insist(context.Background(), "a"); err != nil {
		return err
	}
	return s.clean(s.Key("a"))
}

// leaseIsRenewed: work that takes longer than the lease keeps the lock.
func leaseIsRenewed(s *stage) error {
	v, err := s.visit(context.Background(), "a")
	if err != nil {
		return err
	}
	defer v.open()
	time.Sleep(2 * lease)
	if err := s.holds(v.ctx, "a"); err != nil {
		return fmt.Errorf("after two leases: %w", err)
	}
	v.open()
	return <-v.end
}

// panicReleases: after a panic the lock is free.
func panicReleases(s *stage) error {
	r, err := s.replica(func(_ context.Context, name string) {
		if name == "a" {
			panic("this panic is part of a scenario")
		}
	})
	if err != nil {
		return err
	}
	err, late := soon(r.begin(context.Background(), "a"), "a call whose work panics")
	if late != nil {
		return late
	}
	if err == nil {
		return errors.New("a call whose work has panicked: got nil, want an error or a panic")
	}
	if s.redis.Exists(s.Key("a")) {
		return errors.New("the lock is held after its work has panicked")
	}
	return <-r.insist(context.Background(), "b")
}

// leavesWhileWaiting: nothing is left of a caller that leaves before it has the lock.
func leavesWhileWaiting(s *stage) error {
	g := newGate()
	defer g.open()
	var called atomic.Int64
	r, err := s.replica(func(ctx context.Context, name string) {
		if called.Add(1) == 1 {
			g.work(ctx, name)
		}
	})
	if err != nil {
		return err
	}
	end := r.begin(context.Background(), "a")
	if _, err := soon(g.entered, "a call for a free lock"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var ends []<-chan error
	for range crowd {
		ends = append(ends, r.begin(ctx, "a"))
	}
	time.Sleep(pause)
	cancel()
	for _, end := range ends {
		if err, late := soon(end, "a caller that has left"); late != nil || err == nil {
			return fmt.Errorf("a caller that left before it had the lock: got %v (%v), want an error", err, late)
		}
	}
	if n := called.Load(); n != 1 {
		return fmt.Errorf("%d units of work ran while another one had the lock", n-1)
	}
	g.open()
	if err := <-end; err != nil {
		return err
	}
	return s.clean(s.Key("a"))
}

// leavesWhileWorking: the lock is held until the work returns, whether or not its caller waits for it.
func leavesWhileWorking(s *stage) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	v, err := s.visit(ctx, "a")
	if err != nil {
		return err
	}
	defer v.open()
	cancel()
	time.Sleep(2 * lease)
	if !s.redis.Exists(s.Key("a")) {
		return errors.New("the lock is free while the work of a caller that left goes on")
	}
	v.open()
	err, late := soon(v.end, "a call whose work has returned")
	switch {
	case late != nil:
		return late
	case errors.Is(err, holdfast.ErrUnavailable), s.redis.Exists(s.Key("a")):
		return fmt.Errorf("the release went by the context of a caller that left: got %v", err)
	}
	return s.clean(s.Key("a"))
}

// lossIsReported: the context of work ends when the lock is lost, and the call fails though the work returns as always.
func lossIsReported(s *stage) error {
	return s.lose(func(ctx context.Context) error {
		if s.NoLock {
			time.Sleep(2 * lease)
			return nil
		}
		if _, err := soon(ctx.Done(), "the context of work whose lock is gone"); err != nil {
			return err
		}
		if !errors.Is(context.Cause(ctx), holdfast.ErrLost) {
			return fmt.Errorf("the cause of the context's end is %v, want ErrLost", context.Cause(ctx))
		}
		return nil
	})
}

// lossAtTheEnd: a loss that only the release finds out is reported, too.
func lossAtTheEnd(s *stage) error { return s.lose(func(context.Context) error { return nil }) }

// lose has a call lose its lock, and its work return after then.
func (s *stage) lose(then func(ctx context.Context) error) error {
	v, err := s.visit(context.Background(), "a")
	if err != nil {
		return err
	}
	defer v.open()
	s.redis.Del(s.Key("a"))
	if err := then(v.ctx); err != nil {
		return err
	}
	v.open()
	switch err, late := soon(v.end, "a call whose lock was lost"); {
	case late != nil:
		return late
	case !errors.Is(err, holdfast.ErrLost):
		return fmt.Errorf("a call whose lock was lost: got %v, want ErrLost", err)
	case len(v.entered) > 0:
		return errors.New("work was called again after a loss")
	}
	return s.clean(s.Key("a"))
}

// outageAtTheEnd: work has been done though Redis does not confirm the release, so the call must not be repeated.
func outageAtTheEnd(s *stage) error {
	v, err := s.visit(context.Background(), "a")
	if err != nil {
		return err
	}
	defer v.open()
	s.become(hung)
	defer s.become(up)
	v.open()
	switch err, late := soon(v.end, "a call that Redis does not let go"); {
	case late != nil:
		return late
	case err != nil:
		return fmt.Errorf("the release was not confirmed: got %v, want nil, as the work has been done", err)
	}
	s.become(up)
	return s.clean(s.Key("a"))
}

// outage: while Redis does not answer, many calls fail within a bounded time and none runs; afterwards all is as before.
func outage(s *stage, as state) error {
	var called atomic.Int64
	r, err := s.replica(func(context.Context, string) { called.Add(1) })
	if err != nil {
		return err
	}
	if err := <-r.insist(context.Background(), "a"); err != nil {
		return err
	}
	s.become(as)
	defer s.become(up)
	var ends []<-chan error
	for i := range crowd {
		ends = append(ends, r.begin(context.Background(), fmt.Sprint("outage-", i%10)))
	}
	for _, end := range ends {
		err, late := soon(end, "a call while Redis does not answer")
		if late != nil {
			return late
		}
		if !errors.Is(err, holdfast.ErrUnavailable) {
			return fmt.Errorf("while Redis does not answer: got %v, want ErrUnavailable", err)
		}
	}
	if n := called.Load(); n != 1 {
		return fmt.Errorf("%d units of work ran without the lock", n-1)
	}
	s.become(up)
	for began := time.Now(); ; time.Sleep(pause) {
		if err = <-r.insist(context.Background(), "a"); err == nil {
			break
		}
		if time.Since(began) > patience {
			return fmt.Errorf("after the outage: %w", err)
		}
	}
	return s.clean("outage-")
}

// shutdown: Shutdown of the Locker waits for work that runs, and lets no other begin.
func shutdown(s *stage) error {
	v, err := s.visit(context.Background(), "a")
	if err != nil {
		return err
	}
	defer v.open()
	over := make(chan error, 1)
	go func() { over <- v.Shutdown(context.Background()) }()
	time.Sleep(pause)
	err, late := soon(v.begin(context.Background(), "b"), "a call after Shutdown")
	switch {
	case late != nil:
		return late
	case !errors.Is(err, holdfast.ErrClosed):
		return fmt.Errorf("a call after Shutdown: got %v, want ErrClosed", err)
	}
	select {
	case err := <-over:
		return fmt.Errorf("the Locker's Shutdown returned (%v) while work runs", err)
	default:
	}
	v.open()
	if err := <-v.end; err != nil {
		return err
	}
	return <-over
}
