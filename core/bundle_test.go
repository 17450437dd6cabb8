package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// Acquires and releases that wait for a lane go out in one command.
func TestBundleOfManyCallers(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		known(t, r)
		for round, want := range []int{2, 1} { // at first the server does not know the script
			if kinds := cycles(t, r, servertest.Pass); kinds["bundle"] != want || kinds["acquire"]+kinds["forget"] != 0 {
				t.Errorf("round %d: %v", round, kinds)
			}
			time.Sleep(time.Millisecond)
		}
		onlyCompanions(t, b)
	})
}

// A lock that is new to the server goes by itself. Where most are, acquires are not tried in a bundle for a moment.
func TestBundleOfNewLocks(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		looks := 0
		onBundle(b, func(_ *server.Peer, args string) bool {
			if strings.Contains(args, "new") {
				looks++
			}
			return false
		})
		for round, want := range []int{2, 2, 3} { // NOSCRIPT is one, at first
			kinds, taken := gathered(t, r, fmt.Sprint("new", round), servertest.Pass, nil)
			fine(t, errors.Join(taken...))
			if kinds["acquire"] != 5 || kinds["forget"] != 0 || looks != want {
				t.Errorf("round %d: %v, %d bundles with acquires, want %d", round, kinds, looks, want)
			}
			if round == 1 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		onlyCompanions(t, b)
	})
}

// A call that is no common one goes by itself, and says what it would have said without the others.
func TestBundleLeavesOutWhatIsSpecial(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		known(t, r)
		lock := acquire(t, newReplica(t, b).Locker, "k1", holdfast.WithLabel("other"))
		b.Redis.HSet("k2", "a", "b")
		begin := time.Now()
		kinds, taken := gathered(t, r, "k", servertest.Pass, nil, holdfast.WithWait(0))
		lasted(t, begin, 0) // nobody had to ask twice
		var held *holdfast.HeldError
		if !errors.As(taken[1], &held) || held.Label != "other" || !contains(taken[2], "WRONGTYPE") {
			t.Error(taken)
		}
		fine(t, errors.Join(taken[0], taken[3], taken[4]))
		if kinds["bundle"] != 2 || kinds["acquire"] != 2 || kinds["forget"] != 0 {
			t.Error(kinds)
		}
		release(t, lock)
		b.Redis.Del("k2")
		onlyCompanions(t, b)
	})
}

// Of a bundle that is not answered, or fails where each of its calls would not (in the middle of the script, at a proxy that
// takes no keys of several servers, with a reply that nobody knows), each call may have been carried out: all are asked for
// again, by themselves, and nobody is told of it.
func TestBundleThatIsNotAnswered(t *testing.T) {
	for what, c := range map[string]struct {
		v     servertest.Verdict
		reply func(*server.Peer)
	}{
		"no reply":               {servertest.LoseReply, nil},
		"no request":             {servertest.LoseRequest, nil},
		"reply and connection":   {servertest.LoseReplyAndClose, nil},
		"request and connection": {servertest.LoseRequestAndClose, nil},
		"in the middle":          {servertest.Pass, func(c *server.Peer) { c.WriteError("ERR user_script:12: attempt to index a nil value") }},
		"at a proxy":             {servertest.Pass, func(c *server.Peer) { c.WriteError("ERR eval/evalsha command keys must be in same slot") }},
		"oddly":                  {servertest.Pass, func(c *server.Peer) { c.WriteLen(1); c.WriteInt(1) }},
	} {
		t.Run(what, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				known(t, r)
				cycles(t, r, servertest.Pass) // the server knows the script from now on
				time.Sleep(time.Millisecond)
				if c.reply != nil {
					onBundle(b, func(p *server.Peer, _ string) bool { c.reply(p); return true })
				}
				if kinds := cycles(t, r, c.v); kinds["bundle"] == 0 || kinds["acquire"] == 0 || kinds["forget"] == 0 {
					t.Error(kinds)
				}
				time.Sleep(time.Second)
				onlyCompanions(t, b)
			})
		})
	}
}

// Callers that give up while their bundle is under way have no lock in the end, however late it comes.
func TestBundleOfCallersWhoLeft(t *testing.T) {
	for what, hold := range map[string]func(<-chan struct{}) servertest.Verdict{"request": servertest.HoldRequest, "reply": servertest.HoldReply} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			cycles(t, r, servertest.Pass)
			time.Sleep(time.Second)                           // for the keys not to count as new any more
			lock := acquire(t, newReplica(t, b).Locker, "k0") // the bundle leaves it to a command that comes too late
			late := make(chan struct{})
			kinds, taken := gathered(t, r, "k", hold(late), func(leave func()) {
				synctest.Wait()
				leave()
				time.Sleep(100 * time.Millisecond)
				close(late)
			})
			if kinds["acquire"] != 0 {
				t.Error(what, kinds)
			}
			for _, err := range taken {
				wantIs(t, err, context.Canceled)
			}
			release(t, lock)
			time.Sleep(time.Second)
			onlyCompanions(t, b)
		})
	}
}

// A server that refuses a bundle, as it may do where it serves each of its calls, is not asked for one for 10 s.
func TestBundleThatIsRefused(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		var refused atomic.Int64
		onBundle(b, func(c *server.Peer, _ string) bool {
			refused.Add(1)
			c.WriteError("NOPERM No permissions to access a key")
			return true
		})
		for i, want := range []int64{1, 1, 2} {
			if kinds := cycles(t, r, servertest.Pass); refused.Load() != want || kinds["acquire"] != 5 || kinds["forget"] != 5 {
				t.Errorf("round %d: %d refused, %v", i, refused.Load(), kinds)
			}
			if i == 1 {
				time.Sleep(10 * time.Second)
			}
		}
		onlyCompanions(t, b)
	})
}

// serverOf is the server of a key, as proxies choose it that spread keys over servers.
func serverOf(servers []*redis.Client, key string) *redis.Client {
	tag, _, _ := strings.Cut(strings.NewReplacer("{", "", "}", "").Replace(key), ":~")
	sum := 0
	for _, c := range tag {
		sum += int(c)
	}
	return servers[sum%len(servers)]
}

// proxy has each script carried out by the server of its first key, whatever other keys it is given.
func proxy(servers []*redis.Client) hook {
	one := func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		key, ok := cmd.Args()[3].(string)
		if !ok {
			key = *cmd.Args()[3].(*string)
		}
		return serverOf(servers, key).Process(ctx, cmd)
	}
	return hook{one, func(ctx context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error {
		for _, cmd := range cmds {
			_ = one(ctx, cmd, servers[0].Process)
		}
		return nil
	}}
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
		rdb.AddHook(proxy(servers))
		lockers = append(lockers, newLocker(t, rdb, holdfast.WithPolling(time.Millisecond, 5*time.Millisecond)))
	}
	const keys = 48
	var inside [keys]atomic.Int32
	var all sync.WaitGroup
	for i := range 2 * keys {
		all.Go(func() {
			for range 20 {
				if err := lockers[i%2].Do(background, fmt.Sprint("k", i/2), func(context.Context) error {
					if n := inside[i/2].Add(1); n != 1 {
						t.Errorf("%d inside of %d", n, i/2)
					}
					inside[i/2].Add(-1)
					return nil
				}); err != nil && !errors.Is(err, holdfast.ErrUnavailable) { // as on a busy machine
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for i, s := range servers {
		for _, key := range s.Keys(background, "*").Val() {
			if serverOf(servers, key) != s {
				t.Errorf("server %d has %s, which belongs elsewhere", i, key)
			}
		}
	}
	for _, l := range lockers {
		shutdown(t, l)
	}
}

// Servers that serve no keys of several slots, or not all keys, or no client before it has authenticated.
func TestBundleOnServersWithLimits(t *testing.T) {
	t.Parallel()
	cluster, acl, auth := servertest.Redis(t, "--cluster-enabled", "yes"), servertest.Redis(t), servertest.Redis(t)
	admin := cluster.Client()
	must(t, admin.ClusterAddSlotsRange(background, 0, 16383).Err())
	until(t, "the cluster is whole", func() bool { return strings.Contains(admin.ClusterInfo(background).Val(), "cluster_state:ok") })
	user := aclUser(t, acl, "app", "~mine* ~{mine* &* +@all")
	must(t, auth.Client().ConfigSet(background, "requirepass", "pw").Err())
	for _, c := range []struct {
		rdb  *redis.Client
		fail int // of 64, and with what
		text []string
	}{
		{cluster.Client(), 0, nil},
		{user, 16, []string{"NOPERM", "yours"}},
		{redis.NewClient(&redis.Options{Addr: auth.Addr()}), 64, []string{"NOAUTH"}},
	} {
		l := newLocker(t, c.rdb)
		errs := make([]error, 64)
		var all sync.WaitGroup
		for i := range errs {
			key := fmt.Sprint("mine", i)
			if i%4 == 0 {
				key = fmt.Sprint("yours", i)
			}
			all.Go(func() {
				for range 20 {
					var lock *holdfast.Lock
					if lock, errs[i] = l.Acquire(background, key); errs[i] == nil {
						errs[i] = lock.Release(background)
					}
					if errs[i] != nil {
						return
					}
				}
			})
		}
		all.Wait()
		errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
		if len(errs) != c.fail || slices.ContainsFunc(errs, func(err error) bool { return !contains(err, c.text...) }) {
			t.Errorf("%d errors, want %d of %v: %v", len(errs), c.fail, c.text, errs)
		}
		shutdown(t, l)
	}
}

// gathered has r release five locks and acquire five others together, whose names begin with prefix, and calls then, with a
// function that ends the acquires' context, when all of them wait for the lanes. It returns how many commands of each kind r
// sends from then on until all is answered, and the errors of the acquires. The first bundle is judged by v.
func gathered(t *testing.T, r *replica, prefix string, v servertest.Verdict, then func(leave func()), opts ...holdfast.CallOption) (kinds map[string]int, taken []error) {
	t.Helper()
	const n = 5
	var held []*holdfast.Lock
	for i := range n {
		held = append(held, await(t, r.Locker, fmt.Sprint("held", i), holdfast.WithTTL(time.Minute)))
	}
	free := stuck(t, r)
	taken = make([]error, n)
	locks := make([]*holdfast.Lock, n)
	ctx, leave := context.WithCancel(background)
	defer leave()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { release(t, held[i]) })
		all.Go(func() { locks[i], taken[i] = r.Acquire(ctx, fmt.Sprint(prefix, i), opts...) })
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
		then(leave)
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
	return kinds, taken
}

// cycles is gathered where every call comes to a lock.
func cycles(t *testing.T, r *replica, v servertest.Verdict) map[string]int {
	t.Helper()
	kinds, taken := gathered(t, r, "k", v, nil)
	fine(t, errors.Join(taken...))
	return kinds
}

// onBundle has the server of b look at each bundle, and answer with do where that returns true.
func onBundle(b *servertest.Bubble, do func(c *server.Peer, args string) bool) {
	b.Hook(func(c *server.Peer, cmd string, args ...string) bool {
		return kind(append([]string{cmd}, args...)) == "bundle" && do(c, strings.Join(args, " "))
	})
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
func known(t *testing.T, r *replica) {
	t.Helper()
	for i := range 5 {
		release(t, acquire(t, r.Locker, fmt.Sprint("k", i)))
	}
	time.Sleep(time.Millisecond) // or the next tokens have to be drawn
}
