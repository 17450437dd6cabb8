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
	synctest.Wait() // what was sent for calls that have left counts too
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

// known has r take and release the keys that gathered's acquires are for: the server has fences of them then.
func known(t *testing.T, r *replica, n int) {
	t.Helper()
	for i := range n {
		release(t, acquire(t, r.Locker, fmt.Sprint("k", i)))
	}
	time.Sleep(time.Millisecond) // or the next tokens have to be drawn
}

// Acquires and releases that wait for a lane go out in one command.
func TestBundleOfManyCallers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		known(t, r, 5)
		try := func(i int) (*holdfast.Lock, error) { return r.Acquire(background, fmt.Sprint("k", i)) }
		for round, want := range []int{2, 1} { // at first the server does not know the script
			kinds, freed, taken := gathered(t, r, 5, try, nil, servertest.Pass)
			none(t, "release", freed)
			none(t, "acquire", taken)
			if kinds["bundle"] != want || kinds["acquire"]+kinds["forget"] != 0 {
				t.Errorf("round %d: %v", round, kinds)
			}
			time.Sleep(time.Millisecond)
		}
		onlyCompanions(t, b)
		shutdown(t, r.Locker)
	})
}

// A lock that is new to the server goes by itself. Where most are, acquires are not tried in a bundle for a moment.
func TestBundleOfNewLocks(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		looks := 0
		b.Hook(func(_ *server.Peer, cmd string, args ...string) bool {
			if kind(append([]string{cmd}, args...)) == "bundle" && strings.Contains(strings.Join(args, " "), "new") {
				looks++
			}
			return false
		})
		for round, want := range []int{2, 2, 3} { // NOSCRIPT is one, at first
			try := func(i int) (*holdfast.Lock, error) { return r.Acquire(background, fmt.Sprint("new", round, i)) }
			kinds, freed, taken := gathered(t, r, 5, try, nil, servertest.Pass)
			none(t, "release", freed)
			none(t, "acquire", taken)
			if kinds["acquire"] != 5 || kinds["forget"] != 0 || looks != want {
				t.Errorf("round %d: %v, %d bundles with acquires, want %d", round, kinds, looks, want)
			}
			if round == 1 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		b.Hook(nil)
		onlyCompanions(t, b)
		shutdown(t, r.Locker)
	})
}

// proxy is a go-redis hook that has each command carried out by the server of its first key, as proxies do that spread keys
// over servers, whatever other keys a script is given.
type proxy struct{ servers []*redis.Client }

func (p proxy) of(key string) *redis.Client {
	tag := strings.NewReplacer("{", "", "}", "").Replace(key)
	tag, _, _ = strings.Cut(tag, ":~")
	sum := 0
	for _, c := range tag {
		sum += int(c)
	}
	return p.servers[sum%len(p.servers)]
}

func (p proxy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p proxy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if name := fmt.Sprint(args[0]); name != "evalsha" && name != "eval" {
			return next(ctx, cmd)
		}
		key, ok := args[3].(string)
		if !ok {
			key = *args[3].(*string)
		}
		return p.of(key).Process(ctx, cmd)
	}
}

func (p proxy) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			_ = p.ProcessHook(p.servers[0].Process)(ctx, cmd)
		}
		return nil
	}
}

// Behind a proxy that spreads keys over servers a bundle reaches one of them. It takes no lock there that belongs elsewhere:
// two replicas never hold one together.
func TestBundleBehindAProxyThatSpreadsKeys(t *testing.T) {
	t.Parallel()
	var servers []*redis.Client
	for range 3 {
		servers = append(servers, servertest.Redis(t).Client())
	}
	var lockers []*holdfast.Locker
	for range 2 {
		rdb := redis.NewClient(&redis.Options{Addr: servers[0].Options().Addr})
		t.Cleanup(func() { _ = rdb.Close() })
		rdb.AddHook(proxy{servers})
		lockers = append(lockers, newLocker(t, rdb, holdfast.WithPolling(time.Millisecond, 5*time.Millisecond)))
	}
	const keys = 48
	var inside [keys]atomic.Int32
	var all sync.WaitGroup
	for i := range 2 * keys {
		all.Go(func() {
			for range 20 {
				lock, err := lockers[i%2].Acquire(background, fmt.Sprint("k", i/2))
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside[i/2].Add(1); n != 1 {
					t.Errorf("%d inside of %d", n, i/2)
				}
				inside[i/2].Add(-1)
				if err := lock.Release(background); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	of := proxy{servers}
	for i, s := range servers {
		found, err := s.Keys(background, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range found {
			if of.of(key) != s {
				t.Errorf("server %d has %s, which belongs elsewhere", i, key)
			}
		}
	}
	for _, l := range lockers {
		shutdown(t, l)
	}
}

// A call that is no common one goes by itself, and says what it would have said without the others.
func TestBundleLeavesOutWhatIsSpecial(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		known(t, r, 5)
		lock := acquire(t, other.Locker, "k1", holdfast.WithLabel("other"))
		b.Redis.HSet("k2", "a", "b")
		try := func(i int) (*holdfast.Lock, error) { return r.TryAcquire(background, fmt.Sprint("k", i)) }
		began := time.Now()
		kinds, freed, taken := gathered(t, r, 5, try, nil, servertest.Pass)
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
		none(t, "acquire", []error{taken[0], taken[3], taken[4]})
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
			known(t, r, 5)
			gathered(t, r, 5, try, nil, servertest.Pass) // the server knows the script from now on
			time.Sleep(time.Millisecond)
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

// A bundle may fail where each of its calls would not: in the middle of the script, at a proxy that takes no keys of several
// servers, with a reply that nobody knows. What became of its calls is unknown then; they are asked again, by themselves, and
// nobody is told of it.
func TestBundleThatFails(t *testing.T) {
	for what, reply := range map[string]func(*server.Peer){
		"in the middle": func(c *server.Peer) { c.WriteError("ERR user_script:12: attempt to index a nil value") },
		"at a proxy":    func(c *server.Peer) { c.WriteError("ERR eval/evalsha command keys must be in same slot") },
		"oddly":         func(c *server.Peer) { c.WriteLen(1); c.WriteInt(1) },
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			warm(t, r)
			known(t, r, 5)
			b.Hook(func(c *server.Peer, cmd string, args ...string) bool {
				if kind(append([]string{cmd}, args...)) != "bundle" {
					return false
				}
				reply(c)
				return true
			})
			try := func(i int) (*holdfast.Lock, error) { return r.TryAcquire(background, fmt.Sprint("k", i)) }
			kinds, freed, taken := gathered(t, r, 5, try, nil, servertest.Pass)
			none(t, what+": release", freed)
			none(t, what+": acquire", taken)
			if kinds["bundle"] == 0 || kinds["acquire"] != 5 || kinds["forget"] != 5 {
				t.Error(what, kinds)
			}
			b.Hook(nil)
			onlyCompanions(t, b)
			shutdown(t, r.Locker)
		})
	}
}

// Servers that serve no keys of several slots, or not all keys, or no client before it has authenticated.
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
