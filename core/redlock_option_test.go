package core_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

func TestNewRedLockRefusesClients(t *testing.T) {
	five := unasked(t, 5)
	same := redis.NewClient(&redis.Options{Addr: five[1].Options().Addr})
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:9"}})
	defer same.Close()
	defer sentinel.Close()
	for name, clients := range map[string][]*redis.Client{
		"none":            {},
		"nil slice":       nil,
		"16":              unasked(t, 16),
		"a nil one":       {five[0], nil, five[2]},
		"one twice":       {five[0], five[1], five[0]},
		"an addr twice":   {five[0], five[1], same},
		"one of Sentinel": {five[0], five[1], sentinel},
	} {
		if _, err := core.NewRedLock(clients); err == nil || !contains(err, "NewRedLock") {
			t.Errorf("%s: got %v", name, err)
		} else {
			wantIs(t, err, core.ErrInvalid)
		}
	}
	for _, n := range []int{1, 2, 4, 15} {
		if _, err := core.NewRedLock(unasked(t, n)); err != nil {
			t.Errorf("%d clients: %v", n, err)
		}
	}
	// A dialer of one's own may lead anywhere, whatever the address says.
	dialer := func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	var dialed []*redis.Client
	for range 3 {
		c := redis.NewClient(&redis.Options{Addr: "redis:6379", Dialer: dialer})
		defer c.Close()
		dialed = append(dialed, c)
	}
	if _, err := core.NewRedLock(dialed); err != nil {
		t.Errorf("clients with dialers of their own: %v", err)
	}
}

func TestRedLockOptions(t *testing.T) {
	clients := unasked(t, 3)
	ok := func(opts ...core.Option) {
		t.Helper()
		if _, err := core.NewRedLock(clients, opts...); err != nil {
			t.Error(err)
		}
	}
	refused := func(opts ...core.Option) {
		t.Helper()
		_, err := core.NewRedLock(clients, opts...)
		wantIs(t, err, core.ErrInvalid)
	}
	refused(core.WithQuarantine(-1))
	refused(core.WithQuarantine(time.Millisecond)) // covers no lease at all
	refused(core.WithQuarantine(5 * time.Second))
	refused(core.WithQuarantine(48*time.Hour + time.Second))
	refused(core.WithNodeTimeout(-time.Second))
	refused(core.WithNodeTimeout(0))
	refused(core.WithNodeTimeout(8 * time.Second)) // of 15 s
	refused(core.WithReplicaAcks(1, time.Second))
	refused(core.WithReentryID("id"))
	ok(core.WithNodeTimeout(7500 * time.Millisecond))
	ok(core.WithQuarantine(0))

	// 7 s, less 4 s for tokens and 1 s for the rounding, cover a lease of 2 s less 1 %.
	ok(core.WithQuarantine(7*time.Second), core.WithTTL(1980*time.Millisecond))
	refused(core.WithQuarantine(7*time.Second), core.WithTTL(1981*time.Millisecond))
	refused(core.WithQuarantine(7 * time.Second)) // for the default of 15 s
	refused(core.WithTTL(25 * time.Second))       // under the default of 30 s
	ok(core.WithTTL(24*time.Hour), core.WithQuarantine(48*time.Hour))
	ok(core.WithTTL(24*time.Hour), core.WithQuarantine(0))

	one := clients[0]
	for _, o := range []core.Option{core.WithQuarantine(0), core.WithQuarantine(time.Minute), core.WithNodeTimeout(time.Second)} {
		_, err := core.New(one, o)
		wantIs(t, err, core.ErrInvalid)
	}
}

// The options of a call are refused before anything is sent.
func TestRedLockCallOptions(t *testing.T) {
	l, err := core.NewRedLock(unasked(t, 3), core.WithTTL(time.Second), core.WithQuarantine(7*time.Second), core.WithNodeTimeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]core.CallOption{
		"a long lease": core.WithTTL(2 * time.Second), "acks": core.WithReplicaAcks(1, time.Second),
		"a re-entry id": core.WithReentryID("id"), "a lease for that node timeout": core.WithTTL(399 * time.Millisecond),
	} {
		_, err := l.TryAcquire(background, "k", o)
		if _, other := l.Acquire(background, "k", o); err == nil || other == nil {
			t.Errorf("%s: no error", name)
		}
		wantIs(t, err, core.ErrInvalid)
		wantIs(t, l.Check("k", o), core.ErrInvalid)
	}
	shutdown(t, l)
}

func TestRedLockExtendBeyondTheQuarantine(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, core.WithTTL(time.Second), core.WithQuarantine(7*time.Second))
		lock := acquire(t, v.Locker, "k")
		wantIs(t, lock.Extend(background, 2*time.Second), core.ErrInvalid)
		if err := lock.Extend(background, 1900*time.Millisecond); err != nil {
			t.Error(err)
		}
		releaseAll(t, lock)
		shutdown(t, v.Locker)
	})
}

// unasked makes n clients for masters that nobody asks.
func unasked(t *testing.T, n int) (clients []*redis.Client) {
	t.Helper()
	for i := range n {
		c := redis.NewClient(&redis.Options{Addr: net.JoinHostPort("127.0.0.1", string(rune('1'+i/10))+string(rune('0'+i%10)))})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	return clients
}
