package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// gathered has r release n locks and acquire n others together, by acquire, and calls then when all of them wait for the
// lanes. It returns how many commands of each kind r sends from then on until all is answered, and the errors of the
// releases and of the acquires, nil for one that worked.
func gathered(t *testing.T, r *replica, n int, acquire func(i int) (*holdfast.Lock, error), then func(servertest.Verdict), v servertest.Verdict) (kinds map[string]int, freed, taken []error) {
	t.Helper()
	var held []*holdfast.Lock
	for i := range n {
		lock, err := r.Acquire(background, fmt.Sprint("held", i), holdfast.WithTTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lock)
	}
	free := stuck(t, r)
	freed, taken = make([]error, n), make([]error, n)
	locks := make([]*holdfast.Lock, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { freed[i] = held[i].Release(background) })
		all.Go(func() { locks[i], taken[i] = acquire(i) })
	}
	synctest.Wait()
	var mu sync.Mutex
	kinds = map[string]int{}
	r.link.OnCommand(func(args []string) servertest.Verdict {
		mu.Lock()
		defer mu.Unlock()
		k := kind(args)
		if k != "bundle" && len(args) > 3 && strings.HasPrefix(args[3], "stuck") {
			return servertest.Pass
		}
		if kinds[k]++; k == "bundle" && kinds[k] == 1 {
			return v
		}
		return servertest.Pass
	})
	free()
	if then != nil {
		then(v)
	}
	all.Wait()
	synctest.Wait() // what was sent for those who have left counts too
	r.link.OnCommand(nil)
	for i, lock := range locks {
		if lock == nil {
			continue
		}
		if got, err := r.rdb.Get(background, lock.Key()).Result(); got != holdfast.Owner(lock) || lock.Err() != nil || lock.Token() == 0 {
			t.Errorf("lock %d: redis has %q, %v, and it says %v", i, got, err, lock.Err())
		}
		release(t, lock)
	}
	return kinds, freed, taken
}

func none(t *testing.T, what string, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("%s %d: %v", what, i, err)
		}
	}
}

// onlyCompanions reports what is left in Redis besides fences and tombstones.
func onlyCompanions(t *testing.T, b *servertest.Bubble) {
	t.Helper()
	for _, key := range b.Redis.Keys() {
		if !strings.Contains(key, ":~fence") && !strings.Contains(key, ":~gone:") {
			t.Errorf("left behind: %s", key)
		}
	}
}

// Acquires and releases that wait for a lane go out in one command.
func TestBundleOfManyCallers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		for round := range 2 { // with new keys and with known ones
			try := func(i int) (*holdfast.Lock, error) { return r.Acquire(background, fmt.Sprint("k", i)) }
			kinds, freed, taken := gathered(t, r, 5, try, nil, servertest.Pass)
			none(t, "release", freed)
			none(t, "acquire", taken)
			want := 1
			if round == 0 {
				want = 2 // the server did not know the script
			}
			if kinds["bundle"] != want || kinds["acquire"]+kinds["forget"] != 0 {
				t.Errorf("round %d: %v", round, kinds)
			}
			time.Sleep(time.Millisecond) // or the next tokens have to be drawn
		}
		onlyCompanions(t, b)
		shutdown(t, r.Locker)
	})
}

// A call that is no common one goes by itself, and says what it would have said without the others.
func TestBundleLeavesOutWhatIsSpecial(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		lock := acquire(t, other.Locker, "k1", holdfast.WithLabel("other"))
		b.Redis.HSet("k2", "a", "b")
		try := func(i int) (*holdfast.Lock, error) { return r.TryAcquire(background, fmt.Sprint("k", i)) }
		began := time.Now()
		kinds, freed, taken := gathered(t, r, 4, try, nil, servertest.Pass)
		if d := time.Since(began); d > 0 {
			t.Errorf("it took %v, as if somebody had to ask twice", d)
		}
		none(t, "release", freed)
		var held *holdfast.HeldError
		if !errors.As(taken[1], &held) || held.Label != "other" {
			t.Error(taken[1])
		}
		if taken[2] == nil || !strings.Contains(taken[2].Error(), "WRONGTYPE") {
			t.Error(taken[2])
		}
		none(t, "acquire", []error{taken[0], taken[3]})
		if kinds["bundle"] != 2 || kinds["acquire"] != 2 || kinds["forget"] != 0 {
			t.Error(kinds)
		}
		release(t, lock)
		b.Redis.Del("k2")
		onlyCompanions(t, b)
		shutdown(t, r.Locker)
		shutdown(t, other.Locker)
	})
}

// Of a bundle that is not answered each call may have been carried out: all are asked for again, and nobody is told anything
// wrong.
func TestBundleThatIsNotAnswered(t *testing.T) {
	for what, v := range map[string]servertest.Verdict{
		"no reply": servertest.LoseReply, "no request": servertest.LoseRequest,
		"reply and connection": servertest.LoseReplyAndClose, "request and connection": servertest.LoseRequestAndClose,
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			warm(t, r)
			try := func(i int) (*holdfast.Lock, error) { return r.Acquire(background, fmt.Sprint("k", i)) }
			gathered(t, r, 5, try, nil, servertest.Pass) // the server knows the script from now on
			kinds, freed, taken := gathered(t, r, 5, try, nil, v)
			none(t, what+": release", freed)
			none(t, what+": acquire", taken)
			if kinds["bundle"] == 0 || kinds["acquire"] == 0 || kinds["forget"] == 0 {
				t.Error(what, kinds)
			}
			time.Sleep(time.Second)
			onlyCompanions(t, b)
			shutdown(t, r.Locker)
		})
	}
}

// Callers that give up while their bundle is under way have no lock in the end, however late it comes.
func TestBundleOfCallersWhoLeft(t *testing.T) {
	for what, hold := range map[string]func(<-chan struct{}) servertest.Verdict{"request": servertest.HoldRequest, "reply": servertest.HoldReply} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r, other := newReplica(t, b), newReplica(t, b)
			warm(t, r)
			gathered(t, r, 5, func(i int) (*holdfast.Lock, error) { return r.Acquire(background, fmt.Sprint("k", i)) }, nil, servertest.Pass)
			lock := acquire(t, other.Locker, "k0") // the bundle leaves it to a command that comes too late
			ctx, cancel := context.WithCancel(background)
			try := func(i int) (*holdfast.Lock, error) { return r.Acquire(ctx, fmt.Sprint("k", i)) }
			late := make(chan struct{})
			then := func(servertest.Verdict) {
				synctest.Wait()
				cancel()
				time.Sleep(100 * time.Millisecond)
				close(late)
			}
			kinds, freed, taken := gathered(t, r, 5, try, then, hold(late))
			if kinds["acquire"] != 0 {
				t.Error(what, kinds)
			}
			none(t, what+": release", freed)
			for i, err := range taken {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s: acquire %d: %v", what, i, err)
				}
			}
			release(t, lock)
			time.Sleep(time.Second)
			onlyCompanions(t, b)
			shutdown(t, r.Locker)
			shutdown(t, other.Locker)
		})
	}
}

// A server that refuses a bundle, as it may do where it serves each of its calls, is not asked for one for 10 s.
func TestBundleThatIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		var refused atomic.Int64
		b.Hook(func(c *server.Peer, cmd string, args ...string) bool {
			if kind(append([]string{cmd}, args...)) != "bundle" {
				return false
			}
			refused.Add(1)
			c.WriteError("NOPERM No permissions to access a key")
			return true
		})
		try := func(i int) (*holdfast.Lock, error) { return r.Acquire(background, fmt.Sprint("k", i)) }
		for i, want := range []int64{1, 1, 2} {
			kinds, freed, taken := gathered(t, r, 5, try, nil, servertest.Pass)
			none(t, "release", freed)
			none(t, "acquire", taken)
			if refused.Load() != want || kinds["acquire"] != 5 || kinds["forget"] != 5 {
				t.Errorf("round %d: %d refused, %v", i, refused.Load(), kinds)
			}
			if i == 1 {
				time.Sleep(10 * time.Second)
			}
		}
		b.Hook(nil)
		onlyCompanions(t, b)
		shutdown(t, r.Locker)
	})
}

// An error of a bundle that may come from the middle of the script is that of each call, and so is a reply that nobody knows.
func TestBundleThatFails(t *testing.T) {
	for text, reply := range map[string]func(*server.Peer){
		"nil value":        func(c *server.Peer) { c.WriteError("ERR user_script:12: attempt to index a nil value") },
		"unexpected reply": func(c *server.Peer) { c.WriteLen(1); c.WriteInt(1) },
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			warm(t, r)
			var failed atomic.Int64
			b.Hook(func(c *server.Peer, cmd string, args ...string) bool {
				if kind(append([]string{cmd}, args...)) != "bundle" || failed.Add(1) > 1 {
					return false
				}
				reply(c)
				return true
			})
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			try := func(i int) (*holdfast.Lock, error) { return r.TryAcquire(ctx, fmt.Sprint("k", i)) }
			kinds, freed, taken := gathered(t, r, 5, try, nil, servertest.Pass)
			for _, err := range append(freed, taken...) {
				if err != nil && (!errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), text)) {
					t.Error(err)
				}
			}
			if text == "nil value" { // which another try cannot mend
				for i := range freed {
					if freed[i] == nil || taken[i] == nil {
						t.Errorf("%d: %v, %v: %v, failed %d", i, freed[i], taken[i], kinds, failed.Load())
					}
				}
			}
			time.Sleep(time.Second) // the releases go on
			onlyCompanions(t, b)
			shutdown(t, r.Locker)
		})
	}
}

// Servers that serve no keys of several slots, or not all keys, or nobody yet who has not authenticated.
func TestBundleOnServersWithLimits(t *testing.T) {
	t.Parallel()
	crowd := func(t *testing.T, l *holdfast.Locker, key func(i int) string) (errs []error) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				for range 20 {
					lock, err := l.Acquire(background, key(i))
					if err == nil {
						err = lock.Release(background)
					}
					if err != nil {
						mu.Lock()
						errs = append(errs, err)
						mu.Unlock()
						return
					}
				}
			})
		}
		all.Wait()
		return errs
	}
	t.Run("cluster", func(t *testing.T) {
		s := servertest.Redis(t, "--cluster-enabled", "yes")
		admin := s.Client()
		if err := admin.ClusterAddSlotsRange(background, 0, 16383).Err(); err != nil {
			t.Fatal(err)
		}
		for admin.ClusterInfo(background).Val() == "" || !strings.Contains(admin.ClusterInfo(background).Val(), "cluster_state:ok") {
			time.Sleep(10 * time.Millisecond)
		}
		l := newLocker(t, s.Client())
		none(t, "cycle", crowd(t, l, func(i int) string { return fmt.Sprint("k", i) }))
		shutdown(t, l)
	})
	t.Run("acl", func(t *testing.T) {
		s := servertest.Redis(t)
		if err := s.Client().Do(background, "acl", "setuser", "app", "on", ">pw", "~mine*", "~{mine*", "&*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		l := newLocker(t, s.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" }))
		errs := crowd(t, l, func(i int) string {
			if i%4 == 0 {
				return fmt.Sprint("yours", i)
			}
			return fmt.Sprint("mine", i)
		})
		if len(errs) != 16 {
			t.Errorf("%d errors, want 16", len(errs))
		}
		for _, err := range errs {
			if !strings.Contains(err.Error(), "NOPERM") || !strings.Contains(err.Error(), "yours") {
				t.Error(err)
			}
		}
		shutdown(t, l)
	})
	t.Run("auth", func(t *testing.T) {
		s := servertest.Redis(t)
		if err := s.Client().ConfigSet(background, "requirepass", "pw").Err(); err != nil {
			t.Fatal(err)
		}
		l := newLocker(t, redis.NewClient(&redis.Options{Addr: s.Addr()}))
		errs := crowd(t, l, func(i int) string { return fmt.Sprint("k", i) })
		if len(errs) != 64 {
			t.Errorf("%d errors, want 64", len(errs))
		}
		for _, err := range errs {
			if !strings.Contains(err.Error(), "NOAUTH") {
				t.Error(err)
			}
		}
		shutdown(t, l)
	})
}
