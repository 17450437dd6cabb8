package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestInspectAllTellsOfEachKeyWhatInspectDoes(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithPrefix("p:"), holdfast.WithLabel("me"))
		held, freed := acquire(t, r.Locker, "held"), acquire(t, r.Locker, "freed")
		release(t, freed)
		waited := make(chan *holdfast.Lock)
		wait(t, newReplica(t, b, holdfast.WithPrefix("p:")), "held", waited)
		synctest.Wait()
		r.rdb.Set(background, "p:foreign", "somebody", 0)
		r.rdb.LPush(background, "p:list", "x")
		keys := []string{"held", "a}b", "freed", "", "never", "foreign", "{k}:~fence", "list", "held"}
		got := inspectAll(background, r.Locker, keys...)
		if len(got) != len(keys) {
			t.Fatalf("%d pairs for %d keys", len(got), len(keys))
		}
		for i, key := range keys {
			s, err := r.Inspect(background, key)
			s.Key = "p:" + key
			same := fmt.Sprint(got[i].err) == fmt.Sprint(err)
			for _, is := range []error{holdfast.ErrInvalid, holdfast.ErrUnavailable} {
				same = same && errors.Is(got[i].err, is) == errors.Is(err, is)
			}
			if !same || got[i].State != s {
				t.Errorf("%q: got %+v, %v, Inspect has %+v, %v", key, got[i].State, got[i].err, s, err)
			}
		}
		want := holdfast.State{Key: "p:held", Held: true, Label: "me", TimeLeft: 15 * time.Second, Holders: 1, Limit: 1, Token: held.Token(), Waiting: 1, Here: true}
		if got[0].State != want {
			t.Errorf("got %+v, want %+v", got[0].State, want)
		}
		wantIs(t, got[1].err, holdfast.ErrInvalid)
		wantIs(t, got[7].err, holdfast.ErrUnavailable)
		release(t, held)
		release(t, <-waited)
	})
}

func TestInspectAllAsksInPipelinesOfBoundedLength(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		// The first pipeline goes out again as the server does not know the script, or with a restart, any more.
		for _, restart := range []bool{false, true} {
			if restart {
				b.Restart()
			}
			for _, k := range inspectAll(background, r.Locker, manyKeys(3)...) {
				must(t, k.err)
			}
		}
		r = newReplica(t, b) // no connection of it is from before the restart
		spy := spyOn(r.rdb)
		lock := acquire(t, r.Locker, "k200")
		var conns [4]*redis.Conn // and none has to be dialled
		for i := range conns {
			conns[i] = r.rdb.Conn()
			must(t, conns[i].Ping(background).Err())
		}
		for _, c := range conns {
			_ = c.Close()
		}
		r.link.Delay(5 * time.Millisecond)
		b.ResetCommands()
		spy.take()
		began := time.Now()
		got := inspectAll(background, r.Locker, manyKeys(260)...)
		took(t, began, 30*time.Millisecond)
		if lens := spy.take(); !slices.Equal(lens, []int{4, 128, 128}) {
			t.Errorf("pipelines of %v, want 128, 128 and 4", lens)
		}
		sent(t, b, 260)
		for i, k := range got {
			if k.err != nil || k.Key != fmt.Sprint("k", i) || k.Held != (i == 200) {
				t.Errorf("%d: %+v, %v", i, k.State, k.err)
			}
		}
		b.ResetCommands()
		for range r.InspectAll(background, manyKeys(300)...) {
			break
		}
		sent(t, b, 128)
		release(t, lock)
	})
}

// A server that is silent is waited for once, and with an ended context nobody is asked.
func TestInspectAllWaitsOnceForAServerThatIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		defer func() { time.Sleep(time.Minute) }() // go-redis' own timeouts
		keys := manyKeys(1000)
		inspectAll(background, r.Locker, keys[0])
		within := func(ctx context.Context, want time.Duration, most int64, targets ...error) {
			t.Helper()
			b.ResetCommands()
			began := time.Now()
			for _, k := range inspectAll(ctx, r.Locker, keys...) {
				wantIs(t, k.err, targets...)
				if errors.Is(k.err, context.DeadlineExceeded) && len(targets) == 1 {
					t.Errorf("got %v", k.err)
				}
			}
			took(t, began, want)
			time.Sleep(10 * time.Millisecond)
			if n := b.Commands().Total(); n > most {
				t.Errorf("%d commands to a server that is silent, want at most %d", n, most)
			}
		}
		within(ended, 0, 0, context.Canceled)
		r.link.CutDown()
		within(background, time.Second, 128, holdfast.ErrUnavailable)
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		defer cancel()
		within(ctx, 100*time.Millisecond, 128, holdfast.ErrUnavailable, context.DeadlineExceeded)
		r.link.Heal()
		for _, k := range inspectAll(background, r.Locker, keys[:10]...) {
			must(t, k.err)
		}
	})
}

// A server, or one of several masters, that is gone is dialled as often for many pipelines as for one.
func TestInspectAllDoesNotGoOnDiallingAServerThatIsGone(t *testing.T) {
	for _, n := range []int{1, 3} {
		bubbleOf(t, n, func(t *testing.T, ms masters) {
			dialsFor := func(keys int) int {
				var clients []*redis.Client
				for _, m := range ms {
					clients = append(clients, m.Client(func(o *redis.Options) { o.DialerRetries = 1 }))
				}
				ms[0].Link(clients[0]).Refuse(errors.New("no route"))
				spy := spyOn(clients[0])
				l := newLocker(t, clients[0])
				if len(ms) > 1 {
					l = quorum(t, clients)
				}
				for _, k := range inspectAll(background, l, manyKeys(keys)...) {
					if len(ms) > 1 {
						must(t, k.err)
						continue
					}
					wantIs(t, k.err, holdfast.ErrUnavailable)
					if !contains(k.err, "no route", fmt.Sprintf("%q", k.Key)) {
						t.Errorf("got %v", k.err)
					}
				}
				time.Sleep(time.Second) // for tries that nobody waits for
				return int(spy.dials.Load())
			}
			if one, many := dialsFor(100), dialsFor(2000); one == 0 || many != one {
				t.Errorf("%d dials for many pipelines, want the %d of one", many, one)
			}
		})
	}
}

func TestInspectAllAsksAgainWhereAServerFailedToServe(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		inspectAll(background, r.Locker, "k1")
		asked := map[string]int{}
		b.Hook(func(c *server.Peer, cmd string, args ...string) bool {
			if !strings.EqualFold(cmd, "evalsha") {
				return false
			}
			key := args[2]
			asked[key]++
			if key == "bad" || key == "slow" && asked[key] < 3 {
				c.WriteError("LOADING for a moment")
				return true
			}
			return false
		})
		got := inspectAll(background, r.Locker, "k1", "bad", "slow", "k2")
		b.Hook(nil)
		for i, k := range got {
			if errors.Is(k.err, holdfast.ErrUnavailable) != (i == 1) {
				t.Errorf("%q: %v", k.Key, k.err)
			}
		}
		if asked["k1"] != 1 || asked["k2"] != 1 || asked["slow"] != 3 || asked["bad"] != 3 {
			t.Errorf("asked %v", asked)
		}
	})
}

// The loop's body may shut the Locker down: InspectAll does not count as a call between two pipelines.
func TestInspectAllLeavesTheLockerFreeBetweenPipelines(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		n := 0
		for s, err := range r.InspectAll(background, manyKeys(130)...) {
			if n == 0 {
				shutdown(t, r.Locker)
			}
			if n++; n <= 128 && err != nil || n > 128 && !errors.Is(err, holdfast.ErrClosed) {
				t.Errorf("%q: %v", s.Key, err)
			}
		}
		var none context.Context
		for _, k := range inspectAll(none, r.Locker, "k", "k2") {
			wantIs(t, k.err, holdfast.ErrInvalid)
		}
		if got := inspectAll(background, r.Locker); n != 130 || got != nil {
			t.Errorf("%d pairs, want 130, and without keys: %v", n, got)
		}
	})
}

// One pipeline at a time goes to each shard of a Cluster. One that is silent is waited for once, and does not cost another
// its tries: there a connection dies with the first command.
func TestInspectAllTellsOfOneShardWhileAnotherIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb, _, links := shards(t, b)
		l := newLocker(t, rdb)
		ask := func(keys int, limit time.Duration) (good int) {
			t.Helper()
			began := time.Now()
			for _, k := range inspectAll(background, l, manyKeys(keys)...) {
				if k.err == nil {
					good++
				} else if !contains(k.err, "no answer in time") || !errors.Is(k.err, holdfast.ErrUnavailable) {
					t.Error(k.err)
				}
			}
			atMost(t, began, limit)
			return good
		}
		ask(8, time.Second)
		for _, link := range links {
			link.Delay(5 * time.Millisecond)
		}
		if n := ask(140, 20*time.Millisecond); n != 140 { // two round trips
			t.Errorf("%d keys of 140 told", n)
		}
		links[shardTwo].CutUp()
		b.ResetCommands()
		good := ask(140, 1100*time.Millisecond)
		if n := int(b.Commands()["evalsha"]); n != good || n < 30 || n > 110 {
			t.Errorf("%d keys told, %d asked for on the shard that answers", good, n)
		}
		links[shardTwo].Heal()
		time.Sleep(time.Minute)
		links[shardTwo].CutUp()
		var n atomic.Int64
		links[shardOne].OnCommand(func([]string) servertest.Verdict {
			if n.Add(1) == 1 {
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		if good := ask(600, 2*time.Second); good < 200 {
			t.Errorf("%d of 600 told", good)
		}
		links[shardTwo].Heal()
	})
}

func TestInspectAllTellsWhatMostMastersSay(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, redlock.WithQuarantine(0))
		defer func() { time.Sleep(5 * time.Minute) }()
		keys := manyKeys(1000)
		lock := acquire(t, v.Locker, "k5", holdfast.WithLabel("me"))
		inspectAll(background, v.Locker, "k5")
		ms[0].Redis.Del("k5")                 // one has forgotten it,
		_ = ms[1].Redis.Set("k6", "somebody") // and one of them alone has another
		_, _ = ms[2].Redis.Lpush("k8", "x")
		check := func(what string, n int, limit time.Duration) {
			t.Helper()
			began := time.Now()
			for i, k := range inspectAll(background, v.Locker, keys[:n]...) {
				if k.err != nil || k.Held != (i == 5) || i == 5 && (k.Token != lock.Token() || k.Label != "me") {
					t.Errorf("%s: %d: %+v, %v", what, i, k.State, k.err)
				}
			}
			atMost(t, began, limit)
		}
		synctest.Wait() // two answers were enough
		each(ms, (*servertest.Bubble).ResetCommands)
		check("all there", 20, 0)
		synctest.Wait()
		for i, m := range ms {
			if n := m.Commands()["evalsha"]; n != 20 {
				t.Errorf("master %d: %d commands, want 20", i, n)
			}
		}
		v.links[0].CutDown()
		ms[0].ResetCommands()
		_ = ms[1].Redis.Set("k5", holdfast.Owner(lock)+"x")
		split := inspectAll(background, v.Locker, "k5")[0] // one silent, and the two others do not agree
		if split.err != nil || split.Held {
			t.Errorf("held by nobody on most masters: %+v, %v", split.State, split.err)
		}
		_ = ms[1].Redis.Set("k5", holdfast.Owner(lock))
		ms[2].Redis.Del("k8")
		check("one silent", len(keys), time.Second)
		if n := ms[0].Commands()["evalsha"]; n > 130 {
			t.Errorf("%d commands to the silent one, want those of one pipeline", n)
		}
		v.links[1].CutDown()
		for _, k := range inspectAll(background, v.Locker, "k5", "k6") {
			wantIs(t, k.err, holdfast.ErrUnavailable)
			if errors.Is(k.err, holdfast.ErrInvalid) || !contains(k.err, fmt.Sprintf("%q", k.Key), "no answer in time") {
				t.Errorf("two silent: %v", k.err)
			}
		}
		each(v.links, (*servertest.Link).Heal)
		_ = lock.Release(background)
	})
}

func TestServerInspectAllAsksTheShardsOfARing(t *testing.T) {
	t.Parallel()
	shards := []*servertest.Server{servertest.Redis(t), servertest.Redis(t)}
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": shards[0].Addr(), "two": shards[1].Addr()}, HeartbeatFrequency: time.Hour})
	defer rdb.Close()
	spy := spyOn(rdb)
	l := newLocker(t, rdb)
	keys := manyKeys(20)
	for _, key := range keys {
		obtain(t, l, key, holdfast.WithTTL(time.Minute), holdfast.WithoutRenewal())
	}
	until(t, "all are held", func() bool { // a busy machine may take longer than a second to answer
		spy.take()
		return !slices.ContainsFunc(inspectAll(background, l, keys...), func(k looked) bool { return k.err != nil || !k.Held || k.Token <= 0 })
	})
	if lens := spy.take(); len(lens) != 2 || lens[0]+lens[1] != len(keys) {
		t.Errorf("pipelines of %v, want one for each shard", lens)
	}
}

func TestInspectAllRefusesMastersThatAreOneServer(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		l := quorum(t, []*redis.Client{b.Client(), b.Client(), b.Client()})
		_, err := l.TryAcquire(background, "k") // by which it comes to light
		wantIs(t, err, holdfast.ErrInvalid)
		for _, k := range inspectAll(background, l, "k", "k2") {
			wantIs(t, k.err, holdfast.ErrInvalid, holdfast.ErrUnavailable)
		}
		shutdown(t, l)
	})
}

func TestServerInspectAll(t *testing.T) {
	t.Parallel()
	srv := servertest.Redis(t)
	l := newLocker(t, srv.Client())
	lock := obtain(t, l, "k7", holdfast.WithLabel("me"))
	srv.Client().LPush(background, "k9", "x")
	for range 2 { // the server learns the script from the first
		var got []looked
		until(t, "answers in time", func() bool { // a busy machine may take longer than a second
			srv.ResetStats(t)
			got = inspectAll(background, l, manyKeys(300)...)
			return !slices.ContainsFunc(got, func(k looked) bool { return contains(k.err, "no answer in time") })
		})
		for i, k := range got {
			if i == 9 {
				wantIs(t, k.err, holdfast.ErrUnavailable)
			} else if k.err != nil || k.Held != (i == 7) || i == 7 && (k.Label != "me" || k.Token != lock.Token()) {
				t.Errorf("%d: %+v, %v", i, k.State, k.err)
			}
		}
	}
	if stats := srv.CommandStats(t); stats["evalsha"] != 300 || stats["eval"] != 0 {
		t.Errorf("got %v, want 300 EVALSHA", stats)
	}
	release(t, lock)
	shutdown(t, l)
}

// looked is one of the pairs that InspectAll yields.
type looked struct {
	holdfast.State
	err error
}

func inspectAll(ctx context.Context, l *holdfast.Locker, keys ...string) (all []looked) {
	for s, err := range l.InspectAll(ctx, keys...) {
		all = append(all, looked{s, err})
	}
	return all
}

func manyKeys(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
	}
	return keys
}

// spy is a hook that notes dials, and how many scripts came in each pipeline.
type spy struct {
	dials atomic.Int64
	mu    sync.Mutex
	lens  []int
}

func spyOn(rdb redis.UniversalClient) *spy {
	s := new(spy)
	rdb.AddHook(s)
	return s
}

// take returns the lengths that were noted since the last time, in order.
func (s *spy) take() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	lens := s.lens
	s.lens = nil
	slices.Sort(lens)
	return lens
}

func (s *spy) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.dials.Add(1)
		return next(ctx, network, addr)
	}
}

func (*spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" { // not the handshake of a connection
			s.mu.Lock()
			s.lens = append(s.lens, len(cmds))
			s.mu.Unlock()
		}
		return next(ctx, cmds)
	}
}
