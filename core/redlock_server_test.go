package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestServerRedLockWithOneToFiveMasters(t *testing.T) {
	t.Parallel()
	all := startFleet(t, 5)
	for n := 1; n <= 5; n++ {
		f := all[:n]
		a, b, key := f.locker(t), f.locker(t), fmt.Sprint("k", n)
		lock := obtain(t, a, key, holdfast.WithLabel("me"))
		until(t, "all have it", func() bool { return f.having(key) == n })
		_, err := b.TryAcquire(background, key)
		if held := refused(t, err); held.Label != "me" {
			t.Errorf("%d masters, a rival: %v", n, err)
		}
		if s := inspect(t, b, key); !s.Held || s.Token != lock.Token() {
			t.Errorf("%d masters: %+v", n, s)
		}
		next := contend(t, b, key)
		release(t, lock)
		got := won(t, next)
		rises(t, lock, got)
		release(t, got)
		shutdown(t, a)
		shutdown(t, b)
		f.empty(t, key)
	}
}

// With four masters one may hang and two may not, as with three.
func TestServerRedLockMinorityAndMajorityHang(t *testing.T) {
	t.Parallel() // mostly it waits
	for name, c := range map[string]struct{ n, spare int }{"one of three": {3, 1}, "one of four": {4, 1}, "two of five": {5, 2}} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, c.n)
			l := f.locker(t, holdfast.WithTTL(10*time.Second), redlock.WithNodeTimeout(4*time.Second))
			short := f.locker(t, holdfast.WithTTL(5*time.Second), redlock.WithNodeTimeout(300*time.Millisecond))
			release(t, obtain(t, l, "k"))
			release(t, obtain(t, short, "k"))
			f.empty(t, "k")
			each(f[:c.spare], (*servertest.Server).Pause)
			began := time.Now()
			for range 5 {
				lock := obtain(t, l, "k")
				fine(t, lock.Extend(background, 11*time.Second))
				release(t, lock)
			}
			atMost(t, began, 4*time.Second)

			held := obtain(t, short, "held", holdfast.WithoutRenewal())
			f[c.spare].Pause()
			silent := func(what string, err error, began time.Time) {
				t.Helper()
				wantIs(t, err, holdfast.ErrUnavailable)
				if errors.Is(err, holdfast.ErrLost) || errors.Is(err, holdfast.ErrNotAcquired) {
					t.Errorf("%s claims to know: %v", what, err)
				}
				if took := time.Since(began); took < 290*time.Millisecond || took > 3*time.Second {
					t.Errorf("%s returned after %v, want about the node timeout of 300ms", what, took)
				}
			}
			began = time.Now()
			_, err := short.TryAcquire(background, "k")
			silent("TryAcquire", err, began)
			if !contains(err, f[0].Addr(), f[c.spare].Addr()) {
				t.Errorf("it does not name the silent masters: %v", err)
			}
			began = time.Now()
			silent("Extend", held.Extend(background, 6*time.Second), began)
			began = time.Now()
			silent("Release", held.Release(background), began)
			began = time.Now()
			_, err = short.Inspect(background, "k")
			silent("Inspect", err, began)

			for _, call := range map[string]func(context.Context) error{
				"TryAcquire": func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "x"); return err },
				"Acquire":    func(ctx context.Context) error { _, err := l.Acquire(ctx, "y"); return err },
				"Claim":      func(ctx context.Context) error { _, err := tick.Claim(ctx, l, "z", time.Now()); return err },
				"Inspect":    func(ctx context.Context) error { _, err := l.Inspect(ctx, "k"); return err },
			} {
				ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
				began = time.Now()
				err := call(ctx)
				cancel()
				wantIs(t, err, holdfast.ErrUnavailable, context.DeadlineExceeded)
				atMost(t, began, 3*time.Second)
			}
			each(f[:c.spare+1], (*servertest.Server).Resume)
			within(t, "Shutdown", func() { shutdown(t, l); shutdown(t, short) })
			f.empty(t, "k", "held", "x", "y")
			if n := f.having("{z}:~mark"); n != 0 {
				t.Errorf("a claim that failed left its mark on %d masters", n)
			}
		})
	}
}

// Their votes would count twice.
func TestServerRedLockTwoClientsOfOneServer(t *testing.T) {
	t.Parallel() // mostly it waits
	f := startFleet(t, 3)
	_, port, _ := strings.Cut(f[0].Addr(), ":")
	for name, addr := range map[string]string{"by name": "localhost:" + port, "through a proxy": servertest.Proxy(t, f[0].Addr()).Addr()} {
		for use, call := range map[string]func(l *holdfast.Locker, key string) error{
			"TryAcquire": func(l *holdfast.Locker, key string) error { return released(l.TryAcquire(background, key)) },
			"Acquire":    func(l *holdfast.Locker, key string) error { return released(l.Acquire(background, key)) },
			"Claim": func(l *holdfast.Locker, key string) error {
				_, err := tick.Claim(background, l, key, time.Now())
				return err
			},
		} {
			for _, alone := range []bool{true, false} { // most of those that are up, or two others may be a majority before the twin has answered
				t.Run(fmt.Sprint(name, " ", use, " alone ", alone), func(t *testing.T) {
					key := "k " + t.Name()
					twin, third := redis.NewClient(&redis.Options{Addr: addr}), f[1].Client()
					defer twin.Close()
					if alone {
						third = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
						defer third.Close()
					}
					l := quorum(t, []*redis.Client{f[0].Client(), twin, third})
					var err error
					until(t, "an ErrInvalid", func() bool { // on a busy machine some answers come too late
						if err = call(l, key); err == nil && alone {
							t.Fatal("one server is most of three")
						}
						return errors.Is(err, holdfast.ErrInvalid)
					})
					if !contains(err, f[0].Addr(), addr, "the same server") {
						t.Errorf("got %v", err)
					}
					wantIs(t, call(l, key), holdfast.ErrInvalid)
					shutdown(t, l)
					if f.empty(t, key); alone { // else a claim may have been won before
						f.empty(t, "{"+key+"}:~mark")
					}
				})
			}
		}
	}
}

// The uptime of a real server is in whole seconds.
func TestServerRedLockQuarantine(t *testing.T) {
	t.Parallel()
	const quarantine = 6 * time.Second
	// As long a node timeout as a short lease allows, for machines that are busy.
	opts := []holdfast.Option{holdfast.WithTTL(900 * time.Millisecond), redlock.WithNodeTimeout(400 * time.Millisecond), redlock.WithQuarantine(quarantine)}
	began := time.Now()
	f := startFleet(t, 5)
	up := time.Now()
	b := f.locker(t, opts...)

	// A cold start.
	_, err := b.TryAcquire(background, "k")
	for q := (*redlock.QuarantineError)(nil); !(errors.As(err, &q) && len(q.Nodes) >= 3) && time.Since(began) < quarantine; {
		_, err = b.TryAcquire(background, "k") // on a busy machine some answer too late
	}
	e := young(t, err)
	if len(e.Nodes) < 3 || e.Until.Before(began.Add(quarantine)) || e.Until.After(time.Now().Add(quarantine+2*time.Second)) {
		t.Errorf("all started %v ago, and: %v", time.Since(began), err)
	}
	if ok, err := tick.Claim(background, b, "c", time.Now()); ok || err == nil {
		t.Errorf("Claim of a tick before the start: %v, %v", ok, err)
	}
	// vote tries until b has the lock or end, and returns the last error but for those of a busy machine.
	vote := func(end time.Time) (lock *holdfast.Lock, last error) {
		for {
			lock, err := b.TryAcquire(background, "k")
			if err == nil {
				return lock, last
			}
			last = err
			if time.Now().After(end) {
				return nil, last
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	time.Sleep(time.Until(began.Add(quarantine - time.Second)))
	lock, err := vote(up.Add(hang))
	if lock == nil {
		t.Fatal(err)
	}
	if age := time.Since(began); age < quarantine {
		t.Errorf("they voted after %v", age)
	}
	release(t, lock)
	time.Sleep(time.Until(up.Add(quarantine + 2*time.Second))) // all vote
	f.empty(t, "k")

	// The holder has the lock on the last three, and two of those forget it.
	clients, heal := f.without(t, 2)
	a := quorum(t, clients, opts...)
	lock = obtain(t, a, "k", holdfast.WithoutRenewal())
	before := time.Now()
	f.restart(3, 4)
	after := time.Now()
	for {
		rival, err := b.TryAcquire(background, "k")
		if lock.Err() != nil {
			if rival != nil {
				release(t, rival)
			}
			break
		}
		if err == nil {
			t.Fatalf("two holders, %d and %d", lock.Token(), rival.Token())
		}
		time.Sleep(time.Millisecond)
	}
	_ = lock.Release(background)
	next, err := vote(time.Now().Add(hang))
	if next == nil {
		t.Fatal(err)
	}
	if age := time.Since(after); age > quarantine {
		t.Logf("a busy machine: %v since the restart", age)
	} else if next.Token() <= lock.Token() {
		t.Errorf("token %d after %d", next.Token(), lock.Token())
	}
	release(t, next)

	// Two who vote are too few.
	f[0].Pause()
	_, err = b.TryAcquire(background, "k")
	if time.Since(before) < quarantine {
		if e := young(t, err); !slices.Equal(e.Nodes, sorted(f.addrs(3, 4))) || e.Until.Before(before.Add(quarantine)) ||
			e.Until.After(time.Now().Add(quarantine+2*time.Second)) {
			t.Errorf("two started %v ago: %v", time.Since(before), err)
		}
	}
	time.Sleep(time.Until(before.Add(quarantine - time.Second)))
	if next, err = vote(time.Now().Add(hang)); next == nil {
		t.Fatal(err)
	}
	if age := time.Since(before); age < quarantine {
		t.Errorf("they voted %v after their restart", age)
	}
	release(t, next)
	f[0].Resume()
	heal()
	shutdown(t, a)
	shutdown(t, b)
	f.empty(t, "k")
}

// What the quarantine is for: without one, the crash of a minority lets a second holder in. The first one's next
// renewal tells it, and the tokens tell the two apart.
func TestServerRedLockWithoutQuarantine(t *testing.T) {
	t.Parallel() // mostly it waits
	f := startFleet(t, 5)
	clients, heal := f.without(t, 2)
	a, b := quorum(t, clients, holdfast.WithTTL(5*time.Second)), f.locker(t)
	lock := obtain(t, a, "k")
	f.restart(3, 4)
	// If a renewal came first it has brought the lock back.
	rival, err := b.TryAcquire(background, "k")
	if err == nil {
		rises(t, lock, rival)
		within(t, "the loss", func() { <-lock.Context(background).Done() })
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		fine(t, rival.Err())
		release(t, rival)
	} else {
		t.Log("a renewal was first:", err)
		wantIs(t, err, holdfast.ErrNotAcquired)
		release(t, lock)
	}
	// All forget everything, and vote at once.
	last := obtain(t, b, "k")
	release(t, last)
	time.Sleep(time.Second) // a token may be ahead of the clocks by as much as the durations of requests differ: see redlock/README.md
	f.restart(0, 1, 2, 3, 4)
	next := obtain(t, b, "k")
	rises(t, last, next)
	release(t, next)
	heal()
	shutdown(t, a)
	shutdown(t, b)
	f.empty(t, "k")
}

// released lets go of a lock that should not be.
func released(lock *holdfast.Lock, err error) error {
	if lock != nil {
		return lock.Release(background)
	}
	return err
}

func sorted(all []string) []string { slices.Sort(all); return all }
