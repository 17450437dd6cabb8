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
	"github.com/redis/go-redis/v9"
)

// Rule L: nobody is ever inside together with more than its own limit allows.
type inside struct {
	t   *testing.T
	mu  sync.Mutex
	all map[*holdfast.Lock]bool
	max int
}

func (in *inside) enter(lk *holdfast.Lock) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.all == nil {
		in.all = map[*holdfast.Lock]bool{}
	}
	in.all[lk] = true
	live := 0
	for l := range in.all {
		if l.Err() == nil {
			live++
		}
	}
	for l := range in.all {
		if l.Err() == nil && l.Limit() > 0 && live > l.Limit() {
			in.t.Errorf("%d inside, and one of them allows %d", live, l.Limit())
		}
	}
	in.max = max(in.max, live)
}

func (in *inside) leave(lk *holdfast.Lock) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.all, lk)
}

func TestLimitLetsSoManyIn(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		three := holdfast.WithLimit(3)
		var rs []*replica
		for range 5 {
			rs = append(rs, newReplica(t, b))
		}
		var locks []*holdfast.Lock
		last := int64(0)
		for _, r := range rs[:3] {
			lk := acquire(t, r.Locker, "k", three)
			if lk.Limit() != 3 || lk.Token() <= last {
				t.Errorf("limit %d, token %d after %d", lk.Limit(), lk.Token(), last)
			}
			last, locks = lk.Token(), append(locks, lk)
		}
		_, err := rs[3].TryAcquire(background, "k", three)
		var held *holdfast.HeldError
		if !errors.As(err, &held) || held.Holders != 3 || held.TimeLeft <= 0 || held.TimeLeft > 15*time.Second {
			t.Errorf("the fourth: %v", err)
		}
		if _, err := rs[3].TryAcquire(background, "k"); !errors.As(err, &held) || held.Holders != 3 {
			t.Errorf("one that wants it alone: %v", err)
		}
		if state, err := rs[3].Inspect(background, "k"); err != nil || !state.Held || state.Holders != 3 || state.Limit != 3 || state.Token != last {
			t.Errorf("%+v, %v", state, err)
		}
		// Other libraries find it held, for as long as anybody is inside.
		if set, err := rs[4].rdb.SetNX(background, "k", "redsync", time.Second).Result(); err != nil || set {
			t.Errorf("SET NX: %v, %v", set, err)
		}
		fourth := call(background, rs[3], "k", three)
		synctest.Wait()
		notYet(t, fourth)
		release(t, locks[1])
		synctest.Wait()
		lk := got(t, fourth)
		if lk.Token() <= last {
			t.Errorf("token %d after %d", lk.Token(), last)
		}
		for _, l := range []*holdfast.Lock{locks[0], locks[2], lk} {
			if l.Err() != nil {
				t.Error(l.Err())
			}
			release(t, l)
		}
		alone := acquire(t, rs[0].Locker, "k")
		if alone.Limit() != 1 || alone.Token() <= lk.Token() {
			t.Errorf("limit %d, token %d after %d", alone.Limit(), alone.Token(), lk.Token())
		}
		if _, err := rs[3].TryAcquire(background, "k", three); !errors.As(err, &held) || held.Holders != 1 {
			t.Errorf("beside one that is alone: %v", err)
		}
		release(t, alone)
		empty(t, b, rs...)
	})
}

// Within a process places are passed on without a command, first come first served, and no more than n of its calls are in
// line in Redis.
func TestLimitWithinAProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		three := holdfast.WithLimit(3)
		openInbox(t, b, r)
		var zero []*holdfast.Lock
		for range 3 {
			zero = append(zero, acquire(t, r.Locker, "k", three))
		}
		b.ResetCommands()
		const n = 60
		in := &inside{t: t}
		for _, lk := range zero {
			in.enter(lk)
		}
		var mu sync.Mutex
		var order []int
		var calls sync.WaitGroup
		for i := range n {
			calls.Go(func() {
				lk, err := r.Acquire(background, "k", three)
				if err != nil {
					t.Error(err)
					return
				}
				in.enter(lk)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				in.leave(lk)
				release(t, lk)
			})
			synctest.Wait()
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands of calls that wait behind their own", n)
		}
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		waits := call(ctx, r, "k", holdfast.WithLimit(5)) // another limit has a line of its own, and meets them in Redis
		state, err := r.Inspect(background, "k")
		if err != nil || !state.Here || state.WaitingHere != n+1 || state.Waiting != 1 {
			t.Errorf("%+v, %v", state, err)
		}
		var held *holdfast.HeldError
		if _, err := r.Acquire(background, "k", three, holdfast.WithWait(time.Millisecond)); !errors.As(err, &held) || held.Holders != 3 || !held.Here {
			t.Errorf("%v", err)
		}
		cancel()
		if res := <-waits; !errors.Is(res.err, context.Canceled) {
			t.Error(res.err)
		}
		if err := zero[0].Extend(background, time.Minute); err != nil {
			t.Error(err)
		}
		ended, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if _, err := r.Acquire(ended, "k", three); !errors.As(err, &held) || held.TimeLeft > 15*time.Second {
			t.Errorf("%v, want it to tell of the lease that ends first", err)
		}
		b.ResetCommands()
		for i, lk := range zero {
			in.leave(lk)
			release(t, lk)
			synctest.Wait()
			if state, err := r.Inspect(background, "k"); err != nil || !state.Here || state.WaitingHere != n-i-1 {
				t.Errorf("%+v, %v", state, err)
			}
		}
		calls.Wait()
		for i := range n {
			if d := order[i] - i; d < -5 || d > 5 { // three go on at once
				t.Fatalf("served in the order %v", order)
			}
		}
		if in.max != 3 {
			t.Errorf("%d were inside at most", in.max)
		}
		// Three tenures are taken, and at the end released; what the first calls had is released too.
		if n := b.Commands().Total() - int64(len(zero)); n != 9 {
			t.Errorf("%d commands, want 9: %v", n, b.Commands())
		}
		alone := acquire(t, other.Locker, "k")
		release(t, alone)
		empty(t, b, r, other)
	})
}

// The smaller limit wins while a holder named it.
func TestLimitsThatDiffer(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		old, anew := newReplica(t, b), newReplica(t, b)
		two := acquire(t, old.Locker, "k", holdfast.WithLimit(2))
		five := acquire(t, anew.Locker, "k", holdfast.WithLimit(5))
		if _, err := anew.TryAcquire(background, "k", holdfast.WithLimit(5)); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("a third beside one that allows two: %v", err)
		}
		release(t, two)
		more := []*holdfast.Lock{five}
		for range 4 {
			more = append(more, acquire(t, anew.Locker, "k", holdfast.WithLimit(5)))
		}
		if _, err := old.TryAcquire(background, "k", holdfast.WithLimit(2)); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("one that allows two, beside five: %v", err)
		}
		waits := call(background, old, "k", holdfast.WithLimit(2))
		synctest.Wait()
		for _, lk := range more[:3] {
			release(t, lk)
			synctest.Wait()
			notYet(t, waits)
			// Nobody overtakes it, though a larger limit would do.
			if _, err := anew.TryAcquire(background, "k", holdfast.WithLimit(5)); !errors.Is(err, holdfast.ErrNotAcquired) {
				t.Errorf("past one that waits: %v", err)
			}
		}
		release(t, more[3])
		release(t, got(t, waits))
		release(t, more[4])
		empty(t, b, old, anew)
	})
}

// Readers that wait behind a writer get in together, and those behind the next writer after it.
func TestReadersAndWriters(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		shared := holdfast.WithShared()
		var rs []*replica
		for range 8 {
			rs = append(rs, newReplica(t, b))
		}
		warm(t, rs[0])
		writer := acquire(t, rs[0].Locker, "k")
		var calls []<-chan result
		for i, opts := range [][]holdfast.CallOption{{shared}, {shared}, {shared}, nil, {shared}, {shared}} {
			calls = append(calls, call(background, rs[i+1], "k", opts...))
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		b.ResetCommands()
		release(t, writer)
		synctest.Wait()
		var first []*holdfast.Lock
		for _, c := range calls[:3] {
			lk := got(t, c)
			if lk.Limit() != 0 {
				t.Errorf("limit %d of a reader", lk.Limit())
			}
			first = append(first, lk)
		}
		if n := b.Commands().Total(); n != 1 {
			t.Errorf("%d commands for three readers, want the release alone: %v", n, b.Commands())
		}
		notYet(t, calls[3])
		for _, lk := range first {
			notYet(t, calls[4])
			release(t, lk)
			synctest.Wait()
		}
		second := got(t, calls[3])
		notYet(t, calls[4])
		release(t, second)
		synctest.Wait()
		for _, c := range calls[4:] {
			release(t, got(t, c))
		}
		empty(t, b, rs...)
	})
}

// Two commands for a permit, however many wait, and one for a try that fails.
func TestLimitCosts(t *testing.T) {
	for name, limit := range map[string]holdfast.CallOption{"5": holdfast.WithLimit(5), "50": holdfast.WithLimit(50), "shared": holdfast.WithShared()} {
		for _, waiters := range []int{0, 16, 64} {
			t.Run(fmt.Sprint(name, " and ", waiters), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *servertest.Bubble) {
					r, task := newReplica(t, b), newReplica(t, b)
					warm(t, r)
					openInbox(t, b, r)
					release(t, acquire(t, r.Locker, "k", limit))
					_, _ = r.Inspect(background, "k")
					b.ResetCommands()
					first := acquire(t, r.Locker, "k", limit)
					release(t, first)
					if got := b.Commands().Total(); got != 2 {
						t.Errorf("%d commands for a permit", got)
					}
					alone := acquire(t, task.Locker, "k")
					b.ResetCommands()
					if _, err := r.TryAcquire(background, "k", limit); !errors.Is(err, holdfast.ErrNotAcquired) {
						t.Error(err)
					}
					if got := b.Commands().Total(); got != 1 {
						t.Errorf("%d commands for a try", got)
					}
					b.ResetCommands()
					var all sync.WaitGroup
					for range waiters {
						all.Go(func() {
							lk, err := r.Acquire(background, "k", limit)
							if err != nil {
								t.Error(err)
								return
							}
							if err := lk.Release(background); err != nil {
								t.Error(err)
							}
						})
					}
					synctest.Wait()
					release(t, alone)
					all.Wait()
					if got := b.Commands().Total(); int(got) > 2*waiters+1 {
						t.Errorf("%d commands for %d waiters", got, waiters)
					}
				})
			})
		}
	}
}

// Redis keeps the key until the longest of the leases is over, also that of a holder that has left.
func TestInspectTellsWhenTheFirstLeaseEnds(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		two, short := holdfast.WithLimit(2), 10*time.Second
		dies, leaves := newReplica(t, b, holdfast.WithTTL(short)), newReplica(t, b, holdfast.WithTTL(2*short))
		acquire(t, dies.Locker, "k", two, holdfast.WithoutRenewal())
		lk := acquire(t, leaves.Locker, "k", two)
		state, err := leaves.Inspect(background, "k")
		if err != nil || state.Holders != 2 || state.TimeLeft <= 0 || state.TimeLeft > short {
			t.Errorf("%+v, %v, want the first lease to end within %v", state, err, short)
		}
		release(t, lk)
		time.Sleep(short)
		state, err = leaves.Inspect(background, "k")
		if want := (holdfast.State{Key: "k", Token: lk.Token()}); err != nil || state != want {
			t.Errorf("%+v, %v, want it free when no lease is left: %+v", state, err, want)
		}
	})
}

// A holder that dies counts until its lease is over, and a waiter takes its place then.
func TestLimitAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		two := holdfast.WithLimit(2)
		dead, r := newReplica(t, b), newReplica(t, b)
		dying := acquire(t, dead.Locker, "k", two)
		time.Sleep(time.Second)
		other := acquire(t, r.Locker, "k", two)
		dead.link.CutUp()
		begin := time.Now()
		third := got(t, call(background, r, "k", two))
		// The lease of the dead one is over 14 s later, and a waiter looks once in some 1.5 s.
		if waited := time.Since(begin); waited > 16*time.Second || waited < 13900*time.Millisecond {
			t.Errorf("waited for %v", waited)
		}
		if dying.Err() == nil || other.Err() != nil {
			t.Errorf("the dead one: %v, the other: %v", dying.Err(), other.Err())
		}
		dead.link.Heal()
		wantIs(t, dying.Release(background), holdfast.ErrLost)
		release(t, other)
		release(t, third)
		empty(t, b, dead, r)
	})
}

// An operator's DEL ends all holds, as it does of one.
func TestLimitAfterDel(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		two := holdfast.WithLimit(2)
		r, s := newReplica(t, b), newReplica(t, b)
		locks := []*holdfast.Lock{acquire(t, r.Locker, "k", two), acquire(t, s.Locker, "k", two)}
		b.Redis.Del("k")
		next := acquire(t, s.Locker, "k", two)
		wantIs(t, locks[0].Release(background), holdfast.ErrLost)
		<-locks[1].Context(background).Done()
		wantIs(t, locks[1].Err(), holdfast.ErrLost)
		if next.Err() != nil {
			t.Error(next.Err())
		}
		release(t, next)
		empty(t, b, r, s)
	})
}

// A hold that lasts is renewed, and its fence with it: a release whose answer is lost is told apart from a loss.
func TestLimitOfALongHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		two := holdfast.WithLimit(2)
		r, s := newReplica(t, b), newReplica(t, b)
		long := acquire(t, r.Locker, "k", two)
		short := acquire(t, s.Locker, "k", two)
		time.Sleep(10 * time.Minute)
		if long.Err() != nil || short.Err() != nil {
			t.Fatal(long.Err(), short.Err())
		}
		release(t, short)
		r.link.OnCommand(first("forget", servertest.LoseReplyAndClose))
		release(t, long)
		empty(t, b, r, s)
	})
}

func TestLimitsThatCannotBe(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		for name, opts := range map[string][]holdfast.CallOption{
			"none": {holdfast.WithLimit(0)}, "negative": {holdfast.WithLimit(-1)}, "too many": {holdfast.WithLimit(1001)},
			"re-entry":        {holdfast.WithLimit(2), holdfast.WithReentryID("id")},
			"shared re-entry": {holdfast.WithShared(), holdfast.WithReentryID("id")},
		} {
			if _, err := r.TryAcquire(background, "k", opts...); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		lk := acquire(t, r.Locker, "k", holdfast.WithShared())
		ctx := lk.Context(background)
		for name, opts := range map[string][]holdfast.CallOption{
			"again": {holdfast.WithShared()}, "upgrade": nil, "upgrade, re-entrant": {holdfast.WithReentrancy()},
			"fewer, re-entrant": {holdfast.WithReentrancy(), holdfast.WithLimit(5)},
		} {
			if _, err := r.Acquire(ctx, "k", opts...); !errors.Is(err, holdfast.ErrSelfDeadlock) {
				t.Errorf("%s: %v", name, err)
			}
		}
		nested, err := r.Acquire(ctx, "k", holdfast.WithReentrancy(), holdfast.WithShared())
		if err != nil || nested.Token() != lk.Token() {
			t.Errorf("nested: %v", err)
		}
		release(t, nested)
		release(t, lk)
		alone := acquire(t, r.Locker, "k")
		under, err := r.Acquire(alone.Context(background), "k", holdfast.WithReentrancy(), holdfast.WithShared())
		if err != nil || under.Limit() != 1 {
			t.Errorf("shared under an exclusive hold: %v", err)
		}
		release(t, under)
		release(t, alone)
	})
}

// Masters that each count to n do not count to n together.
func TestLimitOnSeveralMasters(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		for _, o := range []holdfast.CallOption{holdfast.WithLimit(2), holdfast.WithShared()} {
			if _, err := v.TryAcquire(background, "k", o); !errors.Is(err, holdfast.ErrInvalid) {
				t.Error(err)
			}
		}
		release(t, acquire(t, v.Locker, "k", holdfast.WithLimit(1)))
	})
}

// Many processes with limits of all kinds, at random, with links that are cut and keys that are deleted.
func TestLimitStorm(t *testing.T) {
	most, storms := 0, 0
	for seed := range seeds(t, 20) {
		if storms >= 4 && most >= 3 {
			break // by chance four may never have three inside
		}
		storms++
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			in := &inside{t: t}
			var rs []*replica
			for range 4 {
				rs = append(rs, newReplica(t, b))
			}
			var all sync.WaitGroup
			for i := range 12 {
				r, rnd := rs[i%4], rand.New(rand.NewPCG(seed, uint64(i)))
				all.Go(func() {
					for range 8 {
						opts := []holdfast.CallOption{holdfast.WithTTL(time.Second)}
						if n := rnd.IntN(5); n == 4 {
							opts = append(opts, holdfast.WithShared())
						} else if n > 0 {
							opts = append(opts, holdfast.WithLimit(n))
						}
						ctx, cancel := context.WithTimeout(background, time.Duration(rnd.IntN(5000))*time.Millisecond)
						lk, err := r.Acquire(ctx, "k", opts...)
						cancel()
						if err != nil {
							continue
						}
						in.enter(lk)
						time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
						in.leave(lk)
						_ = lk.Release(background)
					}
				})
			}
			for range 10 {
				time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
				switch r := rs[rnd.IntN(4)]; rnd.IntN(3) {
				case 0:
					r.link.CutUp()
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
					r.link.Heal()
				case 1:
					r.link.OnCommand(first("acquire", servertest.LoseReplyAndClose))
				case 2:
					r.link.OnCommand(first("forget", servertest.LoseReplyAndClose))
				}
			}
			all.Wait()
			most = max(most, in.max)
			empty(t, b, rs...)
		})
	}
	if most < 3 {
		t.Errorf("never more than %d inside: the storm shows nothing", most)
	}
}

// What the hash of several holders tells outlives the lock and the fence; where it is lost nothing is told, and nobody let in.
func TestLimitRemembersAndForgets(t *testing.T) {
	onMiniredisAndServer(t, func(t *testing.T, rdb *redis.Client, pass func(time.Duration)) {
		run := func(s holdfast.Script, owner string, args ...any) string {
			t.Helper()
			got, err := s.Run(background, rdb, append([]any{"k", fenceKey, "{k}:~gone:" + owner, lineKey, waitKey, heldKey, owner}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(got)
		}
		permit := func(owner string, lease int) string {
			return run(holdfast.PermitScript, owner, fmt.Sprint(lease, " ", lease+60_000, " 1"), 5)
		}
		back := func(owner, token string) string { return run(holdfast.ReturnScript, owner, token, 60_000, 0) }
		same := func(what, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		fresh := func() { rdb.FlushAll(background) }

		one := permit("o1", 200)
		pass(300 * time.Millisecond)
		same("a release after the lease", back("o1", one), "0")
		rdb.Del(background, fenceKey)
		same("the same where the fence is lost", back("o1", one), "0")

		fresh()
		one, _ = permit("o1", 3_600_000), permit("o2", 1000)
		if left := rdb.PTTL(background, fenceKey).Val(); left < time.Hour {
			t.Errorf("the fence lives for %v, less than a holder's lease", left)
		}
		same("a release", back("o1", one), "1")
		same("the same again", back("o1", one), "2")

		fresh()
		permit("o1", 1000)
		if _, err := holdfast.KeepScript.Run(background, rdb, "k", fenceKey, heldKey, "o1", 3_600_000); err != nil {
			t.Fatal(err)
		}
		lock, fence, hash := rdb.PTTL(background, "k").Val(), rdb.PTTL(background, fenceKey).Val(), rdb.PTTL(background, heldKey).Val()
		if fence < lock+50*time.Second || hash < fence+50*time.Second {
			t.Errorf("the lock lives for %v, the fence for %v, the hash for %v", lock, fence, hash)
		}

		fresh()
		one = permit("o1", 5000)
		permit("o2", 5000)
		rdb.Del(background, heldKey)
		same("a release where the hash is lost", back("o1", one), "3")
		if got := permit("o3", 5000); !strings.Contains(got, "=o1") {
			t.Errorf("where nobody knows the holders: %s", got)
		}

		fresh()
		rdb.HSet(background, heldKey, "of", "=long ago", "cap", "1 1 9999999999999 0", "@o9", "9999999999999 1 5")
		rdb.Set(background, fenceKey, "70 0 50", time.Minute)
		permit("o1", 5000)
		if got := permit("o2", 5000); strings.HasPrefix(got, "[") {
			t.Errorf("beside one holder, and what was left of others: %s", got)
		}

		fresh()
		rdb.Set(background, "k", "=somebody", 9*time.Second)
		rdb.HSet(background, heldKey, "of", "=somebody else", "cap", "5 1 9999999999999 0", "@o9", "9999999999999 5 70")
		if got := permit("o1", 5000); !strings.Contains(got, " =somebody 0 ") || len(strings.Fields(got)) != 6 && len(strings.Fields(got)) != 7 {
			t.Errorf("beside holders of whom another hash tells: %s", got)
		}
		got, err := holdfast.InspectScript.Run(background, rdb, "k", fenceKey, lineKey, heldKey)
		if text := fmt.Sprint(got); err != nil || !strings.HasSuffix(text, " 0 0 0 0]") {
			t.Errorf("Inspect: %s, %v", text, err)
		}
	})
}

// A grant whose message Redis refuses leaves nothing behind, whether the lock was free or others are in.
func TestLimitAndAMessageThatIsRefused(t *testing.T) {
	for _, limit := range []string{"1", "3", "1=job"} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			rdb := b.Client()
			acquire := func(owner, limit, waits string) {
				t.Helper()
				s, args := holdfast.AcquireScript, acquireArgs(owner, 15_000)
				args[2], args[6] = "{k}:~gone:"+owner, args[6].(string)+waits
				if limit != "1" {
					s, args = holdfast.PermitScript, append(args[:5:5], heldKey, args[5], args[6], limit)
				}
				if _, err := s.Run(background, rdb, args...); err != nil {
					t.Fatal(err)
				}
			}
			forget := func(owner string) {
				if _, err := holdfast.ReturnScript.Run(background, rdb, "k", fenceKey, "{k}:~gone:"+owner, lineKey, waitKey, heldKey, owner, 0, 60_000, 0); err != nil {
					t.Fatal(err)
				}
			}
			holders := func() string {
				return fmt.Sprint(rdb.Get(background, "k").Val(), strings.Fields(rdb.Get(background, fenceKey).Val())[1:], rdb.HGetAll(background, heldKey).Val())
			}
			refuse(b, "publish", "ERR This Redis command is not allowed from script")
			acquire("in", strings.TrimSuffix(limit, "=job"), "")
			acquire("first", "1", " 5000 3000 1: 0 -") // or the other would enter
			acquire("told", limit, " 5000 3000 1: 0 inbox")
			before := strings.Replace(holders(), " w", "", 1)
			if limit == "3" {
				forget("first")
				if got := strings.Replace(holders(), " w", "", 1); got != before {
					t.Errorf("%s: beside another: %s, want %s", limit, got, before)
				}
			}
			rdb.HDel(background, waitKey, "mute", "first")
			forget("in")
			fence := strings.Fields(rdb.Get(background, fenceKey).Val())
			if rdb.Exists(background, "k", heldKey).Val() != 0 || fence[1] != "0" || len(fence) > 4 { // no loss
				t.Errorf("%s: free: %s, fence %q", limit, holders(), fence)
			}
			if !rdb.HExists(background, waitKey, "mute").Val() {
				t.Errorf("%s: no message was refused", limit)
			}
		})
	}
}

func onMiniredisAndServer(t *testing.T, fn func(t *testing.T, rdb *redis.Client, pass func(time.Duration))) {
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { fn(t, servertest.NewBubble(t).Client(), time.Sleep) })
	})
	t.Run("server", func(t *testing.T) { fn(t, servertest.Redis(t).Client(), time.Sleep) })
}
