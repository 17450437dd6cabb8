package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Tokens rise whatever becomes of the server's data and of its clock.
func TestTokensRise(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		last := int64(0)
		next := func(what string) {
			t.Helper()
			for _, r := range []*replica{a, c, a} {
				lock := acquire(t, r.Locker, "k")
				if lock.Token() <= last {
					t.Errorf("%s: token %d after %d", what, lock.Token(), last)
				}
				last = lock.Token()
				release(t, lock)
			}
		}
		next("fresh")
		next("again, in the same microsecond")
		if now := time.Now().UnixMicro(); last < now || last > now+10 {
			t.Errorf("token %d at %d µs: want the server's clock", last, now)
		}
		b.Redis.FlushAll()
		time.Sleep(time.Millisecond) // the clock has passed what was issued before
		next("after FLUSHALL")
		time.Sleep(time.Hour)
		if b.Redis.Exists("{k}:~fence") {
			t.Error("the fence never expires")
		}
		next("after the fence expired")
		b.Skew(-30 * time.Second) // a failover to a server whose clock is behind
		next("clock 30s back")
		if ttl := b.Redis.TTL("{k}:~fence"); ttl < 30*time.Second+15*time.Second {
			t.Errorf("the fence expires in %v, before TIME has passed the last token", ttl)
		}
		b.Skew(time.Hour)
		next("clock an hour ahead")
		b.Skew(0)
		next("clock right again")
		if ttl := b.Redis.TTL("{k}:~fence"); ttl < time.Hour {
			t.Errorf("the fence expires in %v, before TIME has passed the last token", ttl)
		}
	})
}

func TestTokensOfConcurrentHoldersAreUniqueAndOrdered(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var mu sync.Mutex
		var tokens []int64
		var wg sync.WaitGroup
		for range 4 {
			r := newReplica(t, b)
			for range 4 {
				wg.Go(func() {
					for range 10 {
						err := r.Do(background, "k", func(ctx context.Context) error {
							mu.Lock()
							tokens = append(tokens, holdfast.Held(ctx)[0].Token()) // in the order of the holds
							mu.Unlock()
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		for i := 1; i < len(tokens); i++ {
			if tokens[i] <= tokens[i-1] {
				t.Fatalf("token %d after %d", tokens[i], tokens[i-1])
			}
		}
		if len(tokens) != 160 {
			t.Errorf("%d holds, want 160", len(tokens))
		}
	})
}

func TestTokensAreExactUpTo2To53(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		const top = int64(1)<<53 - 1
		set := func(last int64) {
			s := strconv.FormatInt(last, 10)
			_ = b.Redis.Set("{k}:~fence", s+" 0 "+s)
		}
		for _, last := range []int64{top - 1, top - 2, top - 3} {
			set(last)
			lock := acquire(t, r.Locker, "k")
			if lock.Token() != last+1 {
				t.Errorf("after %d: got token %d", last, lock.Token())
			}
			if ttl := b.Redis.TTL("{k}:~fence"); ttl < 200*365*24*time.Hour {
				t.Errorf("the fence expires in %v, before TIME has passed the last token", ttl)
			}
			release(t, lock)
		}
		set(top)
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if err == nil || !contains(err, `"k"`, "2^53") {
			t.Errorf("got %v, want the key and the reason in the text", err)
		}
		if b.Redis.Exists("k") {
			t.Error("the lock was taken without a token")
		}
		begin := time.Now()
		_, err = r.Acquire(background, "k") // waiting cannot help
		if wantIs(t, err, holdfast.ErrUnavailable); time.Since(begin) > 0 {
			t.Errorf("gave up after %v", time.Since(begin))
		}
	})
}

// Random histories: every earlier tenure is asked about after every step, and the fence is right about each, or
// says after more losses than it keeps that it does not know.
func TestFenceTellsHowEachTenureEnded(t *testing.T) {
	t.Parallel()
	for seed := range seeds(t, 2) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			rdb := b.Client()
			type tenure struct {
				owner    string
				token    int64
				released bool
				losses   int // up to then
			}
			var all []*tenure
			losses := 0
			loss := rnd.Float64() / 2
			last := int64(0)
			run := func(s holdfast.Script, args ...any) any {
				v, err := s.Run(background, rdb, args...)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			for i := range 40 {
				tn := &tenure{owner: fmt.Sprint("o", i)}
				args := []any{"k", fenceKey, "{k}:~gone:" + tn.owner, lineKey, waitKey, tn.owner, "1000 60000 1"}
				tn.token, _ = run(holdfast.AcquireScript, args...).(int64)
				if tn.token <= last {
					t.Fatalf("token %d after %d", tn.token, last)
				}
				last = tn.token
				if again := run(holdfast.AcquireScript, args...); again != tn.token {
					t.Fatalf("resent acquire: %v", again)
				}
				switch {
				case rnd.Float64() < loss: // lost
					b.Redis.Del("k")
					losses++
				default:
					if v := run(holdfast.ForgetScript, "k", fenceKey, "{k}:~gone:"+tn.owner, lineKey, waitKey, tn.owner, tn.token, 60000, 0); v != int64(1) {
						t.Fatal(v)
					}
					tn.released = true
				}
				if rnd.IntN(4) == 0 {
					b.Skew(time.Duration(rnd.IntN(2000)-1000) * time.Millisecond)
				}
				tn.losses = losses
				all = append(all, tn)
				for _, o := range all {
					v := run(holdfast.ForgetScript, "k", fenceKey, "{k}:~gone:"+o.owner, lineKey, waitKey, o.owner, o.token, 60000, 0).(int64)
					since := losses - o.losses
					ok := v == 3 && since >= 8 || o.released && v == 2 || !o.released && v == 0
					if !ok {
						t.Fatalf("seed %d: released=%v, %d losses since: %d", seed, o.released, since, v)
					}
					if v == 3 && since < 9 && o.released {
						t.Fatalf("released, unknown after %d losses", since)
					}
				}
			}
		})
	}
}

func TestDamagedFenceCountsAsNone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		_ = b.Redis.Set("{k}:~fence", "not a fence")
		lock := acquire(t, r.Locker, "k")
		if lock.Token() < time.Now().UnixMicro() {
			t.Errorf("token %d", lock.Token())
		}
		release(t, lock)
		_, _ = b.Redis.Push("{l}:~fence", "a list")
		_, err := r.TryAcquire(background, "l")
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, `"l"`, "WRONGTYPE") || b.Redis.Exists("l") {
			t.Errorf("got %v", err)
		}
		var held *holdfast.HeldError
		if errors.As(err, &held) {
			t.Error("reported as held")
		}
	})
}

// A key that has been in use, so that its fence is whole, takes no shorter way to what is not a free lock: a key of another
// type stays as it is, and calls with one re-entry id share the lock.
func TestKeyInUseThatBecomesSomethingElse(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		release(t, acquire(t, r.Locker, "k"))
		time.Sleep(time.Millisecond) // the clock has passed its token
		if _, err := b.Redis.Push("k", "theirs"); err != nil {
			t.Fatal(err)
		}
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		if list, err := b.Redis.List("k"); err != nil || len(list) != 1 {
			t.Errorf("the list is %v, %v", list, err)
		}
		b.Redis.Del("k")

		id := holdfast.WithReentryID("job")
		one := acquire(t, r.Locker, "k", id)
		two := acquire(t, other.Locker, "k", id)
		if one.Token() != two.Token() {
			t.Errorf("tokens %d and %d", one.Token(), two.Token())
		}
		release(t, one)
		if err := two.Err(); err != nil || !b.Redis.Exists("k") {
			t.Errorf("released under the other: %v", err)
		}
		release(t, two)
		empty(t, b, r, other)
	})
}
