package holdfast_test

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
		if _, err := holdfast.NewRedLock(clients); err == nil || !contains(err, "NewRedLock") {
			t.Errorf("%s: got %v", name, err)
		} else {
			wantIs(t, err, holdfast.ErrInvalid)
		}
	}
	for _, n := range []int{1, 2, 4, 15} {
		if _, err := holdfast.NewRedLock(unasked(t, n)); err != nil {
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
	if _, err := holdfast.NewRedLock(dialed); err != nil {
		t.Errorf("clients with dialers of their own: %v", err)
	}
}

func TestRedLockOptions(t *testing.T) {
	clients := unasked(t, 3)
	ok := func(opts ...holdfast.Option) {
		t.Helper()
		if _, err := holdfast.NewRedLock(clients, opts...); err != nil {
			t.Error(err)
		}
	}
	refused := func(opts ...holdfast.Option) {
		t.Helper()
		_, err := holdfast.NewRedLock(clients, opts...)
		wantIs(t, err, holdfast.ErrInvalid)
	}
	refused(holdfast.WithQuarantine(-1))
	refused(holdfast.WithQuarantine(time.Millisecond)) // covers no lease at all
	refused(holdfast.WithQuarantine(5 * time.Second))
	refused(holdfast.WithQuarantine(48*time.Hour + time.Second))
	refused(holdfast.WithNodeTimeout(-time.Second))
	refused(holdfast.WithNodeTimeout(0))
	refused(holdfast.WithNodeTimeout(8 * time.Second)) // of 15 s
	refused(holdfast.WithReplicaAcks(1, time.Second))
	refused(holdfast.WithReentryID("id"))
	ok(holdfast.WithNodeTimeout(7500 * time.Millisecond))
	ok(holdfast.WithQuarantine(0))

	// 7 s, less 4 s for tokens and 1 s for the rounding, cover a lease of 2 s less 1 %.
	ok(holdfast.WithQuarantine(7*time.Second), holdfast.WithTTL(1980*time.Millisecond))
	refused(holdfast.WithQuarantine(7*time.Second), holdfast.WithTTL(1981*time.Millisecond))
	refused(holdfast.WithQuarantine(7 * time.Second)) // for the default of 15 s
	refused(holdfast.WithTTL(25 * time.Second))       // under the default of 30 s
	ok(holdfast.WithTTL(24*time.Hour), holdfast.WithQuarantine(48*time.Hour))
	ok(holdfast.WithTTL(24*time.Hour), holdfast.WithQuarantine(0))

	one := clients[0]
	for _, o := range []holdfast.Option{holdfast.WithQuarantine(0), holdfast.WithQuarantine(time.Minute), holdfast.WithNodeTimeout(time.Second)} {
		_, err := holdfast.New(one, o)
		wantIs(t, err, holdfast.ErrInvalid)
	}
}

// The options of a call are refused before anything is sent.
func TestRedLockCallOptions(t *testing.T) {
	l, err := holdfast.NewRedLock(unasked(t, 3), holdfast.WithTTL(time.Second), holdfast.WithQuarantine(7*time.Second), holdfast.WithNodeTimeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]holdfast.CallOption{
		"a long lease": holdfast.WithTTL(2 * time.Second), "acks": holdfast.WithReplicaAcks(1, time.Second),
		"a re-entry id": holdfast.WithReentryID("id"), "a lease for that node timeout": holdfast.WithTTL(399 * time.Millisecond),
	} {
		_, err := l.TryAcquire(background, "k", o)
		if _, other := l.Acquire(background, "k", o); err == nil || other == nil {
			t.Errorf("%s: no error", name)
		}
		wantIs(t, err, holdfast.ErrInvalid)
		wantIs(t, l.Check("k", o), holdfast.ErrInvalid)
	}
	shutdown(t, l)
}

func TestRedLockExtendBeyondTheQuarantine(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithTTL(time.Second), holdfast.WithQuarantine(7*time.Second))
		lock := acquire(t, v.Locker, "k")
		wantIs(t, lock.Extend(background, 2*time.Second), holdfast.ErrInvalid)
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
