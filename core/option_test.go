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

// Options that can never work, alone, together or with what the Locker has, are refused before anything is sent.
func TestBadOptionsAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb := b.Client()
		acks, ttl, second := holdfast.WithReplicaAcks, holdfast.WithTTL, time.Second
		lease := second - holdfast.Margin(second)
		refused := func(name string, err error) {
			t.Helper()
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: got %v, want ErrInvalid", name, err)
			}
		}
		created := func(name string, client redis.UniversalClient, opts ...holdfast.Option) {
			t.Helper()
			_, err := holdfast.New(client, opts...)
			refused("New with "+name, err)
		}
		called := func(name string, l *holdfast.Locker, opts ...holdfast.CallOption) {
			t.Helper()
			_, err := l.TryAcquire(background, "k", opts...)
			refused("TryAcquire with "+name, err)
		}
		l := newLocker(t, rdb)
		for name, opts := range map[string][]holdfast.CallOption{
			"TTL too short":            {ttl(99 * time.Millisecond)},
			"TTL too long":             {ttl(24*time.Hour + 1)},
			"TTL negative":             {ttl(-second)},
			"wait negative":            {holdfast.WithWait(-1)},
			"MaxHold zero":             {holdfast.WithMaxHold(0)},
			"MaxHold below TTL":        {holdfast.WithMaxHold(14 * second)},
			"MaxHold without renewal":  {holdfast.WithMaxHold(time.Minute), holdfast.WithoutRenewal()},
			"progress within nothing":  {holdfast.WithProgress(0)},
			"progress negative":        {holdfast.WithProgress(-second)},
			"label too long":           {holdfast.WithLabel(strings.Repeat("x", 65))},
			"label with a newline":     {holdfast.WithLabel("a\nb")},
			"label not UTF-8":          {holdfast.WithLabel("\xff")},
			"no re-entry id":           {holdfast.WithReentryID("")},
			"re-entry id too long":     {holdfast.WithReentryID(strings.Repeat("x", 129))},
			"nil trace":                {holdfast.WithTrace(nil)},
			"nil option":               {nil},
			"no acks":                  {acks(0, second)},
			"negative acks":            {acks(-1, second)},
			"no timeout":               {acks(1, 0)},
			"timeout too short":        {acks(1, 999*time.Microsecond)},
			"timeout negative":         {acks(1, -second)},
			"timeout too long":         {acks(1, time.Minute+1), ttl(time.Hour)},
			"timeout as long as a TTL": {acks(1, 15*second)},
			"timeout over the lease":   {acks(1, lease), ttl(second)},
			"in the other order":       {ttl(second), acks(1, lease)},
		} {
			created(name, rdb, asOptions(opts)...)
			called(name, l, opts...)
		}
		for _, o := range []holdfast.Option{holdfast.WithPolling(0, second), holdfast.WithPolling(second, time.Millisecond),
			holdfast.WithLocalHandover(-1, second), holdfast.WithLocalHandover(251, second), holdfast.WithLocalHandover(1, -1), holdfast.WithReentryID("id")} {
			created("an option that cannot work", rdb, o)
		}
		for _, prefix := range []string{"a}", "{}x", "a\x00", strings.Repeat("x", 600), "a:~b"} {
			if _, err := holdfast.New(rdb, holdfast.WithPrefix(prefix)); !errors.Is(err, holdfast.ErrInvalid) || !contains(err, "WithPrefix") {
				t.Errorf("New with the prefix %.20q: %v", prefix, err)
			}
		}
		for _, opts := range [][]holdfast.Option{
			{holdfast.WithPrefix("")}, {holdfast.WithPrefix("shop:")}, {holdfast.WithPrefix("{shop}:")}, {holdfast.WithPrefix("a{")}, {holdfast.WithPrefix("{a")},
			{acks(1, time.Millisecond)}, {acks(100, time.Minute), ttl(time.Hour)}, {acks(1, lease-time.Millisecond), ttl(second)},
		} {
			newLocker(t, rdb, opts...)
		}
		// A call's option may contradict the Locker's.
		called("max hold", newLocker(t, rdb, holdfast.WithoutRenewal()), holdfast.WithMaxHold(time.Minute))
		called("a short lease", newLocker(t, rdb, acks(1, second)), ttl(second))
		// Acks need a client of which one can tell which connection it uses.
		other := struct{ redis.UniversalClient }{rdb}
		created("acks and another client", other, acks(1, second))
		called("acks and another client", newLocker(t, other), acks(1, second))
		var typedNil *redis.Client
		created("no client", nil)
		created("a nil client", typedNil)
		called("a wait", l, holdfast.WithWait(second))
		var none context.Context
		_, err := l.Acquire(none, "k")
		refused("Acquire without a context", err)
		sent(t, b, 0)
		acquire(t, newLocker(t, rdb, holdfast.WithWait(second)), "k") // a default does no harm to a try
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
			held := refused(t, err)
			if held.Label != want {
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
