package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// One for each user and twenty for the provider: never more are inside, and all calls get through, whichever of the two keys comes
// first. All twenty places are used if the provider comes last.
func TestOnKeyHasLimitsOfEachKey(t *testing.T) {
	for _, user := range []string{"by-user", "user"} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			var rs []*replica
			for range 4 {
				rs = append(rs, newReplica(t, b))
			}
			users := map[string]*inside{}
			for i := range 30 {
				users[holdfast.Key(user, fmt.Sprint(i))] = &inside{t: t}
			}
			provider, places := &inside{t: t}, holdfast.OnKey("provider:x", holdfast.WithLimit(20))
			ctx, cancel := context.WithTimeout(background, time.Hour)
			defer cancel()
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					key := holdfast.Key(user, fmt.Sprint(i%30))
					fine(t, rs[i%4].DoAll(ctx, []string{"provider:x", key}, func(ctx context.Context) error {
						for _, lk := range holdfast.Held(ctx) {
							in, limit := users[lk.Key()], 1
							if lk.Key() == "provider:x" {
								in, limit = provider, 20
							}
							if lk.Limit() != limit {
								t.Errorf("%s has a limit of %d, want %d", lk.Key(), lk.Limit(), limit)
							}
							in.enter(lk)
							defer in.leave(lk)
						}
						time.Sleep(time.Second)
						return ctx.Err()
					}, places))
				})
			}
			all.Wait()
			// A call that waits for its user has its place already if "provider" comes first.
			if user < "provider" && provider.max != 20 {
				t.Errorf("up to %d at the provider, want 20", provider.max)
			}
			for key, in := range users {
				if in.max != 1 {
					t.Errorf("up to %d of %s, want 1", in.max, key)
				}
			}
			empty(t, b, rs...)
		})
	}
}

// Calls with other keys, limits, readers and writers, in any order, wait in no circle.
func TestOnKeyNeverWaitsInACircle(t *testing.T) {
	for seed := range seeds(t, 2) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			var rs []*replica
			for range 3 {
				rs = append(rs, newReplica(t, b))
			}
			ins := map[string]*inside{}
			for _, key := range []string{"a", "b", "c", "d"} {
				ins[key] = &inside{t: t}
			}
			var all sync.WaitGroup
			for i := range 12 {
				r, rnd := rs[i%3], rand.New(rand.NewPCG(seed, uint64(i)))
				all.Go(func() {
					for range 6 {
						keys := []string{"a", "b", "c", "d"}
						rnd.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
						keys = keys[:2+rnd.IntN(3)]
						var opts []holdfast.CallOption
						for _, key := range keys {
							switch rnd.IntN(3) {
							case 0:
								opts = append(opts, holdfast.OnKey(key, holdfast.WithShared()))
							case 1:
								opts = append(opts, holdfast.OnKey(key, holdfast.WithLimit(2+rnd.IntN(2))))
							}
						}
						ctx, cancel := context.WithTimeout(background, time.Minute)
						err := r.DoAll(ctx, keys, func(ctx context.Context) error {
							for _, lk := range holdfast.Held(ctx) {
								in := ins[lk.Key()]
								in.enter(lk)
								defer in.leave(lk)
							}
							time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
							return ctx.Err()
						}, opts...)
						cancel()
						fine(t, err, "seed", seed)
					}
				})
			}
			all.Wait()
			empty(t, b, rs...)
		})
	}
}

// Readers of one key are inside together, each with a key of its own that it has alone.
func TestOnKeySharesOneKeyOfSeveral(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		reads := holdfast.OnKey("catalog", holdfast.WithShared())
		leave := make(chan struct{})
		var all sync.WaitGroup
		n := 0
		enter := func(r *replica, key string) {
			all.Go(func() {
				fine(t, r.DoAll(background, []string{key, "catalog"}, func(context.Context) error {
					n++
					<-leave
					return nil
				}, reads))
			})
			synctest.Wait()
			time.Sleep(100 * time.Millisecond)
		}
		for i, r := range []*replica{r, r, other} {
			enter(r, fmt.Sprint("order:", i))
		}
		if n != 3 {
			t.Errorf("%d readers are inside, want 3", n)
		}
		err := other.DoAll(background, []string{"order:1", "catalog"}, never(t), reads, holdfast.WithWait(0))
		if held := refused(t, err); held.Key != "order:1" || held.Limit != 1 {
			t.Errorf("%+v", held)
		}
		err = other.DoAll(background, []string{"order:9", "catalog"}, never(t), holdfast.WithWait(0))
		if held := refused(t, err); held.Key != "catalog" || held.Limit != 1 || held.Holders < 2 {
			t.Errorf("%+v", held)
		}
		close(leave)
		all.Wait()
		synctest.Wait()
	})
}

// What applies to key a, b and any other, by the limit that the call gets and by its label.
func TestOnKeyOverrides(t *testing.T) {
	limit, label, on := holdfast.WithLimit, holdfast.WithLabel, holdfast.OnKey
	for name, tt := range map[string]struct {
		given []holdfast.Option
		call  []holdfast.CallOption
		want  string // limit and label of a, b and c
	}{
		"nothing":              {nil, nil, "1 1 1"},
		"one key":              {nil, []holdfast.CallOption{on("a", limit(5))}, "5 1 1"},
		"behind the others":    {nil, []holdfast.CallOption{limit(2), on("a", limit(5))}, "5 2 2"},
		"before the others":    {nil, []holdfast.CallOption{on("a", limit(5)), limit(2)}, "5 2 2"},
		"the rest of them":     {nil, []holdfast.CallOption{label("x"), on("a", limit(5))}, "5x 1x 1x"},
		"the later overrides":  {nil, []holdfast.CallOption{on("a", label("x")), on("a", label("y")), on("b", label("z"))}, "1y 1z 1"},
		"both":                 {nil, []holdfast.CallOption{on("a", label("x")), on("a", limit(5))}, "1x 1 1"},
		"the smallest, first":  {nil, []holdfast.CallOption{on("a", limit(2)), on("a", holdfast.WithShared())}, "2 1 1"},
		"the smallest, second": {nil, []holdfast.CallOption{on("a", limit(5)), on("a", limit(2))}, "2 1 1"},
		"a reader that is to write": {nil, []holdfast.CallOption{on("a", holdfast.WithShared()), on("b", holdfast.WithShared()), on("b")},
			"0 1 1"},
		"a reader and a writer": {nil, []holdfast.CallOption{holdfast.WithShared(), on("a"), on("b", limit(1))},
			"0 1 0"},
		"given to New":         {[]holdfast.Option{on("a", limit(5)), on("d", limit(7)), label("x")}, nil, "5x 1x 1x"},
		"New, and the call":    {[]holdfast.Option{on("a", limit(5))}, []holdfast.CallOption{label("x")}, "5x 1x 1x"},
		"the call overrides":   {[]holdfast.Option{on("a", limit(5), label("x"))}, []holdfast.CallOption{limit(3)}, "3x 3 3"},
		"the call on that key": {[]holdfast.Option{on("a", limit(5)), label("x")}, []holdfast.CallOption{on("a", limit(9)), label("y")}, "9y 1y 1y"},
		"a wait of New":        {[]holdfast.Option{holdfast.WithWait(time.Second), on("a", limit(5))}, []holdfast.CallOption{on("b", limit(6))}, "5 6 1"},
	} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				var mu sync.Mutex
				said := map[string]string{}
				trace := holdfast.WithTrace(&holdfast.Trace{Acquired: func(e holdfast.Event) {
					mu.Lock()
					defer mu.Unlock()
					said[strings.TrimPrefix(e.Key, "shop:")] = fmt.Sprint(e.Limit, e.Label)
				}})
				r.link.Delay(time.Millisecond)
				want := strings.Fields(tt.want)
				keys := []string{"c", "a", "b", "a"}
				fine(t, r.DoAll(background, keys, func(ctx context.Context) error {
					for i, lk := range holdfast.Held(ctx) {
						if key := "shop:" + string("cba"[i]); lk.Key() != key || !strings.HasPrefix(want[2-i], fmt.Sprint(lk.Limit())) {
							t.Errorf("%s has a limit of %d, want %s", lk.Key(), lk.Limit(), tt.want)
						}
					}
					return nil
				}, append([]holdfast.CallOption{trace}, tt.call...)...))
				if got := fmt.Sprint(said["a"], " ", said["b"], " ", said["c"]); got != tt.want {
					t.Errorf("DoAll got %q, want %q", got, tt.want)
				}
				for i, key := range []string{"a", "b", "c"} {
					var opts []holdfast.CallOption // without those for other keys, which Acquire refuses
					for _, o := range tt.call {
						if r.Check(key, o) == nil {
							opts = append(opts, o)
						}
					}
					lk := acquire(t, r.Locker, key, append(opts, trace)...)
					if said[key] != want[i] {
						t.Errorf("Acquire of %s got %q, want %q", key, said[key], want[i])
					}
					release(t, lk)
				}
				r.link.Delay(0)
			}, append([]holdfast.Option{holdfast.WithPrefix("shop:")}, tt.given...)...)
		})
	}
}

// The caller may reuse what it passed.
func TestOnKeyKeepsItsOptions(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		opts := []holdfast.CallOption{holdfast.WithLimit(3)}
		on := holdfast.OnKey("k", opts...)
		opts[0] = nil
		lk := acquire(t, r.Locker, "k", on)
		if lk.Limit() != 3 {
			t.Errorf("a limit of %d", lk.Limit())
		}
		release(t, lk)
	})
}

// Each is refused before Redis is asked.
func TestBadOnKey(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		on, ttl := holdfast.OnKey, holdfast.WithTTL
		always := map[string][]holdfast.CallOption{
			"a bad option":        {on("a", holdfast.WithLimit(0))},
			"a nil option":        {on("a", nil)},
			"a wait":              {on("a", holdfast.WithWait(time.Second))},
			"no wait":             {on("a", holdfast.WithWait(0))},
			"within another":      {on("a", on("a", holdfast.WithLimit(2)))},
			"of another key":      {on("a", on("b"))},
			"below the lease":     {on("a", holdfast.WithMaxHold(14*time.Second))},
			"below its own lease": {holdfast.WithMaxHold(20 * time.Second), on("a", ttl(30*time.Second))},
			"both":                {on("a", holdfast.WithMaxHold(time.Minute)), on("a", holdfast.WithoutRenewal())},
			"shared id":           {on("a", holdfast.WithReentryID("id"), holdfast.WithShared())},
		}
		b.ResetCommands()
		refused := func(name string, err error) {
			t.Helper()
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		calls := func(name string, opts ...holdfast.CallOption) {
			t.Helper()
			_, err := r.Acquire(background, "a", opts...)
			refused("Acquire with "+name, err)
			_, err = r.TryAcquire(background, "a", opts...)
			refused("TryAcquire with "+name, err)
			refused("Do with "+name, r.Do(background, "a", never(t), opts...))
			refused("Lead with "+name, r.Lead(background, "a", never(t), opts...))
			refused("Check with "+name, r.Check("a", opts...))
			refused("DoAll with "+name, r.DoAll(background, []string{"b", "a"}, never(t), opts...))
		}
		for name, opts := range always {
			calls(name, opts...)
			_, err := holdfast.New(r.rdb, asOptions(opts)...)
			refused("New with "+name, err)
		}
		calls("a key that it does not lock", on("c"))
		calls("an empty key", on(""))
		refused("Lead with a limit", r.Lead(background, "a", never(t), on("a", holdfast.WithLimit(2))))
		refused("Lead with an id", r.Lead(background, "a", never(t), on("a", holdfast.WithReentryID("id"))))
		refused("Check with an id", r.Check("a", on("a", holdfast.WithReentryID("id"))))
		for name, o := range map[string]holdfast.Option{
			"an id": on("a", holdfast.WithReentryID("id")), "an empty key": on(""), "a bad key": on("a}"),
		} {
			_, err := holdfast.New(r.rdb, o)
			refused("New with "+name, err)
		}
		other := newLocker(t, r.rdb, on("a", holdfast.WithLimit(2)))
		refused("Lead of a key with a limit", other.Lead(background, "a", never(t)))
		_, err := other.Acquire(background, "a", holdfast.WithReentryID("id"))
		refused("an id for a key with a limit", err)
		sent(t, b, 0)

		// What no key is to have need not work.
		fine(t, r.DoAll(background, []string{"a"}, nothing, holdfast.WithMaxHold(14*time.Second), on("a", ttl(10*time.Second))))
		// An id may be that of one key.
		id := on("a", holdfast.WithReentryID("id"))
		fine(t, r.DoAll(background, []string{"a", "b"}, func(context.Context) error {
			return r.DoAll(background, []string{"a", "c"}, nothing, id)
		}, id))
	})
}

// What several masters cannot do, they cannot do for one key.
func TestBadOnKeyOnSeveralMasters(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		wantIs(t, v.DoAll(background, []string{"a", "b"}, never(t), holdfast.OnKey("b", holdfast.WithLimit(2))), holdfast.ErrInvalid)
		fine(t, v.DoAll(background, []string{"a", "b"}, nothing, holdfast.OnKey("b", holdfast.WithLabel("x"))))
	})
}

// Options for a key cost no command, and no refusal names the limit of another key.
func TestOnKeyCostsNoCommand(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		keys, on := []string{"a", "b"}, holdfast.OnKey("b", holdfast.WithLimit(2))
		r.link.Delay(time.Millisecond)
		for range 2 { // connections and scripts are there
			must(t, r.DoAll(background, keys, nothing, on))
		}
		b.ResetCommands()
		must(t, r.DoAll(background, keys, nothing, on))
		sent(t, b, 4)
		for key, limit := range map[string]int{"a": 1, "b": 2} {
			lk := acquire(t, other.Locker, key)
			held := refused(t, r.DoAll(background, keys, never(t), on, holdfast.WithWait(0)))
			if held.Key != key || held.Limit != limit {
				t.Errorf("%+v, want %s with a limit of %d", held, key, limit)
			}
			release(t, lk)
			time.Sleep(100 * time.Millisecond) // what it gave back
		}
		lk := acquire(t, other.Locker, "a")
		_, err := r.TryAcquire(background, "a", holdfast.WithShared())
		if held := refused(t, err); held.Limit != 0 {
			t.Errorf("a reader: %+v", held)
		}
		release(t, lk)
	})
}
