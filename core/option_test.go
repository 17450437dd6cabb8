package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestBadOptionsAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb := b.Client()
		var typedNil *redis.Client
		for _, client := range []redis.UniversalClient{nil, typedNil} {
			if _, err := holdfast.New(client); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("New(%v): %v", client, err)
			}
		}
		bad := map[string][]holdfast.CallOption{
			"TTL too short":           {holdfast.WithTTL(99 * time.Millisecond)},
			"TTL too long":            {holdfast.WithTTL(24*time.Hour + 1)},
			"TTL negative":            {holdfast.WithTTL(-time.Second)},
			"wait negative":           {holdfast.WithWait(-1)},
			"MaxHold zero":            {holdfast.WithMaxHold(0)},
			"MaxHold below TTL":       {holdfast.WithMaxHold(14 * time.Second)},
			"MaxHold without renewal": {holdfast.WithMaxHold(time.Minute), holdfast.WithoutRenewal()},
			"label too long":          {holdfast.WithLabel(strings.Repeat("x", 65))},
			"label with a newline":    {holdfast.WithLabel("a\nb")},
			"label not UTF-8":         {holdfast.WithLabel("\xff")},
			"no re-entry id":          {holdfast.WithReentryID("")},
			"re-entry id too long":    {holdfast.WithReentryID(strings.Repeat("x", 129))},
			"nil trace":               {holdfast.WithTrace(nil)},
			"nil option":              {nil},
		}
		l := newLocker(t, rdb)
		for name, opts := range bad {
			if _, err := holdfast.New(rdb, asOptions(opts)...); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("New with %s: got %v, want ErrInvalid", name, err)
			}
			if _, err := l.Acquire(background, "k", opts...); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("Acquire with %s: got %v, want ErrInvalid", name, err)
			}
		}
		for _, o := range []holdfast.Option{holdfast.WithPolling(0, time.Second), holdfast.WithPolling(time.Second, time.Millisecond),
			holdfast.WithLocalHandover(-1, time.Second), holdfast.WithLocalHandover(251, time.Second), holdfast.WithLocalHandover(1, -1), holdfast.WithReentryID("id")} {
			if _, err := holdfast.New(rdb, o); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("New with an option that cannot work: %v", err)
			}
		}
		for _, prefix := range []string{"a}", "{}x", "a\x00", strings.Repeat("x", 600), "a:~b"} {
			if _, err := holdfast.New(rdb, holdfast.WithPrefix(prefix)); !errors.Is(err, holdfast.ErrInvalid) || !contains(err, "WithPrefix") {
				t.Errorf("New with the prefix %.20q: %v", prefix, err)
			}
		}
		for _, prefix := range []string{"", "shop:", "{shop}:", "a{", "{a"} {
			if _, err := holdfast.New(rdb, holdfast.WithPrefix(prefix)); err != nil {
				t.Errorf("New with the prefix %q: %v", prefix, err)
			}
		}
		_, err := l.TryAcquire(background, "k", holdfast.WithWait(time.Second))
		wantIs(t, err, holdfast.ErrInvalid)
		_, err = newLocker(t, rdb, holdfast.WithWait(time.Second)).TryAcquire(background, "k2") // a default does no harm
		if err != nil {
			t.Error(err)
		}
		// A call's option may contradict the Locker's.
		_, err = newLocker(t, rdb, holdfast.WithoutRenewal()).TryAcquire(background, "k", holdfast.WithMaxHold(time.Minute))
		wantIs(t, err, holdfast.ErrInvalid)
		var none context.Context
		_, err = l.Acquire(none, "k")
		wantIs(t, err, holdfast.ErrInvalid)
	})
}

func TestReplicaAcksAreChecked(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb := b.Client()
		acks := holdfast.WithReplicaAcks
		ttl, second := holdfast.WithTTL, time.Second
		lease := second - holdfast.Margin(second)
		for name, opts := range map[string][]holdfast.CallOption{
			"none":                     {acks(0, second)},
			"negative":                 {acks(-1, second)},
			"no timeout":               {acks(1, 0)},
			"timeout too short":        {acks(1, 999*time.Microsecond)},
			"timeout negative":         {acks(1, -second)},
			"timeout too long":         {acks(1, time.Minute+1), ttl(time.Hour)},
			"timeout as long as a TTL": {acks(1, 15*second)},
			"timeout over the lease":   {acks(1, lease), ttl(second)},
			"in the other order":       {ttl(second), acks(1, lease)},
		} {
			if _, err := holdfast.New(rdb, asOptions(opts)...); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("New, %s: got %v, want ErrInvalid", name, err)
			}
			if _, err := newLocker(t, rdb).TryAcquire(background, "k", opts...); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("TryAcquire, %s: got %v, want ErrInvalid", name, err)
			}
		}
		for _, opts := range [][]holdfast.CallOption{
			{acks(1, time.Millisecond)}, {acks(100, time.Minute), ttl(time.Hour)}, {acks(1, lease-time.Millisecond), ttl(second)},
		} {
			if _, err := holdfast.New(rdb, asOptions(opts)...); err != nil {
				t.Error(err)
			}
		}
		// The Locker's acks and a TTL of the call do not go together.
		_, err := newLocker(t, rdb, acks(1, second)).TryAcquire(background, "k", ttl(second))
		wantIs(t, err, holdfast.ErrInvalid)
		// Nor do they with a client of which one cannot tell which connection it uses.
		other := struct{ redis.UniversalClient }{rdb}
		if _, err := holdfast.New(other, acks(1, second)); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("New with another client: got %v, want ErrInvalid", err)
		}
		_, err = newLocker(t, other).TryAcquire(background, "k", acks(1, second))
		wantIs(t, err, holdfast.ErrInvalid)
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands for calls that were refused", n)
		}
	})
}

func TestCallOptionsWinAndTracesAddUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var mu sync.Mutex
		var heard []string
		trace := func(name string) holdfast.CallOption {
			return holdfast.WithTrace(&holdfast.Trace{Acquired: func(holdfast.Event) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, name)
			}})
		}
		r := newReplica(t, b, holdfast.WithTTL(30*time.Second), holdfast.WithLabel("locker"), trace("locker"))
		lock := acquire(t, r.Locker, "a", holdfast.WithTTL(2*time.Second), holdfast.WithLabel("call"), trace("call"))
		if got := b.Redis.TTL("a"); got != 2*time.Second || !strings.HasSuffix(holdfast.Owner(lock), ":call") {
			t.Errorf("TTL %v, value %q, want the call's", got, holdfast.Owner(lock))
		}
		plain := acquire(t, r.Locker, "b")
		if got := b.Redis.TTL("b"); got != 30*time.Second || !strings.HasSuffix(holdfast.Owner(plain), ":locker") {
			t.Errorf("TTL %v, value %q, want the Locker's", got, holdfast.Owner(plain))
		}
		if got := strings.Join(heard, " "); got != "locker call locker" {
			t.Errorf("traces heard: %q", got)
		}
		release(t, lock)
		release(t, plain)
	})
}

// Anybody can write a lock's value: only what has the form of ours is taken for a label.
func TestForeignValuesAreNoLabels(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		const random = "0123456789abcdefghijkQ" // 16 bytes
		for value, want := range map[string]string{
			random + ":api-1":                      "api-1",
			random + ":a:b":                        "a:b",
			random + ":":                           "",
			random:                                 "",
			"":                                     "",
			"api-1:" + random:                      "",
			"0123456789abcdefghij:api-1":           "",
			random + ":a\nb":                       "",
			random + ":\xff":                       "",
			random + ":" + strings.Repeat("x", 65): "",
			"not base64! not base64!:api-1":        "",
		} {
			_ = b.Redis.Set("k", value)
			_, err := r.TryAcquire(background, "k")
			var held *holdfast.HeldError
			if !errors.As(err, &held) || held.Label != want {
				t.Errorf("value %q: got %v, want label %q", value, err, want)
			}
		}
	})
}

func asOptions(opts []holdfast.CallOption) (all []holdfast.Option) {
	for _, o := range opts {
		all = append(all, o)
	}
	return all
}
