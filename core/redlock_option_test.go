package holdfast_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/redis/go-redis/v9"
)

func TestRedLockRefusesClients(t *testing.T) {
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
		if _, err := redlock.New(clients); !errors.Is(err, holdfast.ErrInvalid) || !contains(err, "redlock: ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, n := range []int{1, 2, 4, 15} {
		if _, err := redlock.New(unasked(t, n)); err != nil {
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
	if _, err := redlock.New(dialed); err != nil {
		t.Errorf("clients with dialers of their own: %v", err)
	}
}

// Options that cannot work, together or on one Redis, are refused.
func TestRedLockOptions(t *testing.T) {
	clients := unasked(t, 3)
	quarantine, node, ttl := redlock.WithQuarantine, redlock.WithNodeTimeout, holdfast.WithTTL
	for _, opts := range [][]holdfast.Option{
		{node(7500 * time.Millisecond)}, {quarantine(0)},
		{quarantine(7 * time.Second), ttl(1980 * time.Millisecond)}, // less 4 s for tokens, 1 s for the rounding and 1 %
		{ttl(24 * time.Hour), quarantine(48 * time.Hour)}, {ttl(24 * time.Hour), quarantine(0)},
	} {
		_, err := redlock.New(clients, opts...)
		fine(t, err)
	}
	for name, opts := range map[string][]holdfast.Option{
		"negative":                    {quarantine(-1)},
		"for no lease at all":         {quarantine(time.Millisecond)},
		"short":                       {quarantine(5 * time.Second)},
		"too long":                    {quarantine(48*time.Hour + time.Second)},
		"for a shorter lease":         {quarantine(7 * time.Second), ttl(1981 * time.Millisecond)},
		"for less than 15 s":          {quarantine(7 * time.Second)},
		"of 30 s for a long lease":    {ttl(25 * time.Second)},
		"a negative node timeout":     {node(-time.Second)},
		"no node timeout":             {node(0)},
		"half a lease of 15 s for it": {node(8 * time.Second)},
		"acks":                        {holdfast.WithReplicaAcks(1, time.Second)},
		"a re-entry id":               {holdfast.WithReentryID("id")},
	} {
		if _, err := redlock.New(clients, opts...); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("a quarantine, %s: %v", name, err)
		}
	}
	for _, o := range []holdfast.Option{quarantine(0), quarantine(time.Minute), node(time.Second)} {
		_, err := holdfast.New(clients[0], o)
		wantIs(t, err, holdfast.ErrInvalid)
	}
}

// The options of a call, and its extensions, are refused before anything is sent.
func TestRedLockCallOptions(t *testing.T) {
	l, err := redlock.New(unasked(t, 3), holdfast.WithTTL(time.Second), redlock.WithQuarantine(7*time.Second), redlock.WithNodeTimeout(200*time.Millisecond))
	must(t, err)
	for name, o := range map[string]holdfast.CallOption{
		"a long lease": holdfast.WithTTL(2 * time.Second), "acks": holdfast.WithReplicaAcks(1, time.Second),
		"a re-entry id": holdfast.WithReentryID("id"), "a lease for that node timeout": holdfast.WithTTL(399 * time.Millisecond),
	} {
		_, err := l.TryAcquire(background, "k", o)
		_, other := l.Acquire(background, "k", o)
		for _, err := range []error{err, other, l.Check("k", o)} {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	shutdown(t, l)
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithTTL(time.Second), redlock.WithQuarantine(7*time.Second))
		lock := acquire(t, v.Locker, "k")
		wantIs(t, lock.Extend(background, 2*time.Second), holdfast.ErrInvalid)
		fine(t, lock.Extend(background, 1900*time.Millisecond))
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
