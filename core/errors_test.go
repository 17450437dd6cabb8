package holdfast_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestErrorTextsNameTheActAndTheKeyOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b, holdfast.WithLabel("api-1"), holdfast.WithoutRenewal())
		lock := acquire(t, c.Locker, "order:1")
		_, err := r.TryAcquire(background, "order:1")
		same(t, err, `holdfast: "order:1" is held elsewhere by api-1, 15s of its lease left`)
		_, err = r.Acquire(bounded(t, 0), "order:1")
		same(t, err, `holdfast: acquire "order:1": no verdict from redis: context deadline exceeded`)
		b.Redis.Del("order:1")
		same(t, lock.Release(background), `holdfast: hold "order:1": lock was lost: no longer ours in Redis`)
		_ = b.Redis.Set("foreign", "v")
		_, err = r.TryAcquire(background, "foreign")
		same(t, err, `holdfast: "foreign" is held elsewhere, without expiry`)
		b.Redis.SetError("NOAUTH Authentication required.")
		_, err = r.TryAcquire(background, "order:1")
		same(t, err, `holdfast: acquire "order:1": no verdict from redis: NOAUTH Authentication required.`)
		b.Redis.SetError("")
	})
}

func TestHeldErrorTellsHolderAndTimeLeft(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, a *replica) {
		c := newReplica(t, b, holdfast.WithPrefix("shop:"))
		lock := acquire(t, a.Locker, "order:1", holdfast.WithTTL(10*time.Second))
		time.Sleep(4 * time.Second)

		_, err := c.TryAcquire(background, "order:1")
		held := refused(t, err)
		if want := (holdfast.HeldError{Key: "shop:order:1", Label: "api-1", TimeLeft: 6 * time.Second, Holders: 1, Limit: 1}); !reflect.DeepEqual(*held, want) {
			t.Errorf("got %+v, want %+v", *held, want)
		}
		state, err := c.Inspect(background, "order:1")
		if want := (holdfast.State{Key: "shop:order:1", Held: true, Label: "api-1", TimeLeft: 6 * time.Second, Holders: 1, Limit: 1, Token: lock.Token()}); err != nil || state != want {
			t.Errorf("Inspect: got %+v, %v, want %+v", state, err, want)
		}
		release(t, lock)
		state, err = c.Inspect(background, "order:1")
		if want := (holdfast.State{Key: "shop:order:1", Token: lock.Token()}); err != nil || state != want {
			t.Errorf("Inspect of a free lock: got %+v, %v, want %+v", state, err, want)
		}
	}, holdfast.WithLabel("api-1"), holdfast.WithPrefix("shop:"), holdfast.WithoutRenewal())
}

// A caller that waits for its own process is told so, and what it holds itself: that is the deadlock one looks for.
func TestHeldErrorTellsOfThisProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		left, right := acquire(t, a.Locker, "left"), acquire(t, a.Locker, "right", holdfast.WithLabel("api-1"))
		under := left.Context(background)
		_, err := a.TryAcquire(under, "right")
		same(t, err, `holdfast: "right" is held in this process by api-1, 15s of its lease left; the caller's context holds ["left"]`)
		var held *holdfast.HeldError
		if !errors.As(err, &held) || !held.Here || !reflect.DeepEqual(held.Holding, []string{"left"}) {
			t.Errorf("got %+v", held)
		}
		_, err = a.Acquire(right.Context(background), "left", holdfast.WithWait(time.Second))
		same(t, err, `holdfast: "left" is held by this process, 14s of its lease left; the caller's context holds ["right"]`)
		_, err = c.TryAcquire(background, "left")
		same(t, err, `holdfast: "left" is held elsewhere, 14s of its lease left`)

		ended := make(chan error, 2)
		for range 2 {
			go func() { _, err := a.Acquire(background, "left", holdfast.WithWait(time.Second)); ended <- err }()
		}
		synctest.Wait()
		for l, waiting := range map[*replica]int{a: 2, c: 0} {
			state, err := l.Inspect(background, "left")
			if err != nil || !state.Held || state.Here != (l == a) || state.WaitingHere != waiting {
				t.Errorf("got %+v, %v, want %d waiting here", state, err, waiting)
			}
		}
		for range 2 {
			wantIs(t, <-ended, holdfast.ErrNotAcquired)
		}
		if state, _ := a.Inspect(background, "none"); state.Here || state.WaitingHere != 0 {
			t.Errorf("got %+v", state)
		}
		release(t, left)
		release(t, right)
	})
}

// What Redis answers when it does not serve, and what becomes of it: each in the right outcome, with the key
// and Redis' word in the text, and nothing left behind.
func TestServerRefusals(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, l *holdfast.Locker, word string, permanent bool) {
		t.Helper()
		until(t, "an answer to TryAcquire with "+word, func() bool { // on a busy machine it may come late
			_, err := l.TryAcquire(background, "k")
			wantIs(t, err, holdfast.ErrUnavailable)
			if !contains(err, `"k"`) || errors.Is(err, holdfast.ErrNotAcquired) || errors.Is(err, holdfast.ErrLost) {
				t.Errorf("TryAcquire: got %v, want ErrUnavailable", err)
			}
			return contains(err, word)
		})
		wait := 300 * time.Millisecond
		if permanent {
			wait = 10 * time.Second // less than a lease
		}
		_, err := l.Acquire(bounded(t, wait), "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if errors.Is(err, context.DeadlineExceeded) == permanent {
			t.Errorf("Acquire: got %v; waiting can help: %v", err, !permanent)
		}
	}
	refused := func(name string, test func(t *testing.T, server *servertest.Server, rdb *redis.Client, l *holdfast.Locker)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			rdb := server.Client()
			test(t, server, rdb, newLocker(t, rdb, holdfast.WithTTL(8*time.Second)))
		})
	}
	refused("WRONGTYPE", func(t *testing.T, _ *servertest.Server, rdb *redis.Client, l *holdfast.Locker) {
		rdb.LPush(background, "k", "x")
		check(t, l, "WRONGTYPE", true)
		_, err := l.Inspect(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)

		lock := acquire(t, l, "m")
		rdb.Del(background, "m")
		rdb.LPush(background, "m", "x")
		wantIs(t, lock.Extend(background, time.Minute), holdfast.ErrLost)
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		if rdb.LLen(background, "m").Val() != 1 {
			t.Error("the foreign list is gone")
		}
	})
	refused("OOM", func(t *testing.T, _ *servertest.Server, rdb *redis.Client, l *holdfast.Locker) {
		lock := acquire(t, l, "held")
		rdb.ConfigSet(background, "maxmemory", "1")
		check(t, l, "OOM", false)
		fine(t, lock.Extend(background, time.Minute), "a renewal needs no memory")
		release(t, lock) // nor may a release fail for want of it
		if rdb.Exists(background, "held").Val() != 0 {
			t.Error("not released")
		}
	})
	refused("READONLY", func(t *testing.T, _ *servertest.Server, rdb *redis.Client, l *holdfast.Locker) {
		lock := obtain(t, l, "held")
		must(t, rdb.Do(background, "REPLICAOF", "127.0.0.1", "1").Err())
		check(t, l, "READONLY", false)
		// A replica that lags would not have the key: that is no loss, as long as the lease runs.
		_, renewed := holdfast.RenewScript.Run(background, rdb, "lagging", "me", 1000)
		_, forgot := holdfast.ForgetScript.Run(background, rdb, forgetArgs("me", 70, 0)...)
		if !contains(renewed, "READONLY") || !contains(forgot, "READONLY") {
			t.Errorf("got %v, %v, want READONLY", renewed, forgot)
		}
		wantIs(t, lock.Extend(bounded(t, 300*time.Millisecond), time.Minute), holdfast.ErrUnavailable)
		within(t, "the loss", func() { <-lock.Context(background).Done() })
		wantIs(t, lock.Err(), holdfast.ErrLost)
		_ = lock.Release(background)
	})
	refused("NOAUTH", func(t *testing.T, server *servertest.Server, rdb *redis.Client, _ *holdfast.Locker) {
		user := aclUser(t, server, "app", "+@all ~other:*")
		rdb.ConfigSet(background, "requirepass", "secret")
		check(t, newLocker(t, server.Client()), "NOAUTH", true)
		check(t, newLocker(t, server.Client(func(o *redis.Options) { o.Password = "wrong" })), "WRONGPASS", true)
		check(t, newLocker(t, user), "NOPERM", true)
	})
	refused("nobody there", func(t *testing.T, server *servertest.Server, rdb *redis.Client, _ *holdfast.Locker) {
		l := newLocker(t, rdb, holdfast.WithTTL(4*time.Second)) // a clean-up may go on for that long
		server.Kill()
		check(t, l, "connection refused", false)
		shutdown(t, l)
	})
	refused("closed client", func(t *testing.T, _ *servertest.Server, rdb *redis.Client, l *holdfast.Locker) {
		_ = rdb.Close()
		check(t, l, "closed", true)
	})
}

// The least that an ACL must allow.
func TestServerACL(t *testing.T) {
	t.Parallel()
	server, _ := replicated(t)
	rdb := server.Client()
	l := newLocker(t, aclUser(t, server, "app", leastACL), holdfast.WithTTL(2*time.Second), holdfast.WithLocalHandover(0, 0), holdfast.WithTrace(&holdfast.Trace{NodeError: func(e holdfast.Event) {
		t.Errorf("%s: %v", e.Key, e.Err)
	}}))
	lock := obtain(t, l, "job:1")
	fine(t, lock.Extend(background, 2*time.Second))
	next := make(chan *holdfast.Lock, 2)
	for range cap(next) { // one of them at least looks again when the inbox is open
		wait(t, &replica{Locker: l}, "job:1", next)
	}
	until(t, "two in line", func() bool {
		return inspect(t, l, "job:1").Waiting == 2 && rdb.PubSubChannels(background, "holdfast:inbox:*").Val() != nil
	})
	release(t, lock)
	for range cap(next) {
		release(t, <-next)
	}
	id := holdfast.WithReentryID("id")
	one, two := obtain(t, l, "job:2", id), obtain(t, l, "job:2", id)
	fine(t, one.Extend(background, time.Minute))
	release(t, one)
	release(t, two)
	release(t, obtain(t, l, "job:1", holdfast.WithReplicaAcks(1, 10*time.Second), holdfast.WithTTL(15*time.Second)))
	writer := obtain(t, l, "job:3")
	places := make(chan *holdfast.Lock, 2)
	for _, o := range []holdfast.CallOption{holdfast.WithLimit(2), holdfast.WithLimit(3)} {
		wait(t, &replica{Locker: l}, "job:3", places, o)
	}
	until(t, "two in line for places", func() bool { return inspect(t, l, "job:3").Waiting == 2 })
	release(t, writer)
	place := <-places
	fine(t, place.Extend(background, time.Minute))
	release(t, <-places)
	release(t, place)
	shutdown(t, l)
}
