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
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

func TestInspectAllTellsOfEachKeyWhatInspectDoes(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithPrefix("p:"), holdfast.WithLabel("me"))
		held, freed := acquire(t, r.Locker, "held"), acquire(t, r.Locker, "freed")
		release(t, freed)
		waited := make(chan *holdfast.Lock)
		go func() { waited <- obtain(t, newReplica(t, b, holdfast.WithPrefix("p:")).Locker, "held") }()
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
			if s.Key = "p:" + key; got[i].State != s {
				t.Errorf("%q: got %+v, Inspect has %+v", key, got[i].State, s)
			}
			if fmt.Sprint(got[i].err) != fmt.Sprint(err) || errors.Is(got[i].err, holdfast.ErrInvalid) != errors.Is(err, holdfast.ErrInvalid) ||
				errors.Is(got[i].err, holdfast.ErrUnavailable) != errors.Is(err, holdfast.ErrUnavailable) {
				t.Errorf("%q: got %v, Inspect has %v", key, got[i].err, err)
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
		sent := newPipelines()
		r.rdb.AddHook(sent)
		// The first pipeline goes out again as the server does not know the script, or with a restart, any more.
		for _, restart := range []bool{false, true} {
			if restart {
				b.Restart()
			}
			for _, k := range inspectAll(background, r.Locker, manyKeys(3)...) {
				if k.err != nil || k.Held {
					t.Fatalf("%+v, %v", k.State, k.err)
				}
			}
		}
		lock := acquire(t, r.Locker, "k200")
		r.link.Delay(5 * time.Millisecond)
		b.ResetCommands()
		sent.take()
		began := time.Now()
		got := inspectAll(background, r.Locker, manyKeys(260)...)
		if took := time.Since(began); took != 30*time.Millisecond {
			t.Errorf("took %v, want three round trips of 10ms", took)
		}
		if lens := sent.take(); !slices.Equal(lens, []int{4, 128, 128}) || b.Commands().Total() != 260 {
			t.Errorf("pipelines of %v, %v commands, want 128, 128 and 4", lens, b.Commands())
		}
		for i, k := range got {
			if k.err != nil || k.Key != fmt.Sprint("k", i) || k.Held != (i == 200) {
				t.Errorf("%d: %+v, %v", i, k.State, k.err)
			}
		}
		b.ResetCommands()
		for range r.InspectAll(background, manyKeys(300)...) {
			break
		}
		if n := b.Commands().Total(); n != 128 {
			t.Errorf("%d commands for a caller that wants one answer, want a pipeline of 128", n)
		}
		release(t, lock)
	})
}

func TestInspectAllWaitsOnceForAServerThatIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		defer func() { time.Sleep(time.Minute) }() // go-redis' own timeouts
		keys := manyKeys(200)
		inspectAll(background, r.Locker, keys[0])
		within := func(ctx context.Context, want time.Duration, targets ...error) {
			t.Helper()
			b.ResetCommands()
			began := time.Now()
			for _, k := range inspectAll(ctx, r.Locker, keys...) {
				wantIs(t, k.err, targets...)
				if errors.Is(k.err, context.DeadlineExceeded) != (len(targets) > 1) {
					t.Errorf("got %v", k.err)
				}
			}
			if took := time.Since(began); took != want {
				t.Errorf("took %v, want %v", took, want)
			}
			if n := b.Commands().Total(); n > 128 {
				t.Errorf("%d commands to a server that is silent, want those of one pipeline", n)
			}
		}
		r.link.CutDown()
		within(background, time.Second, holdfast.ErrUnavailable)
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		defer cancel()
		within(ctx, 100*time.Millisecond, holdfast.ErrUnavailable, context.DeadlineExceeded)
		r.link.Heal()
		for _, k := range inspectAll(background, r.Locker, keys[:10]...) {
			if k.err != nil {
				t.Fatalf("after the outage: %v", k.err)
			}
		}
	})
}

func TestInspectAllDoesNotGoOnDiallingAServerThatIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		dialsFor := func(keys int) (dials int) {
			rdb := b.Client(func(o *redis.Options) { o.DialerRetries = 1 })
			l := newLocker(t, rdb)
			b.Link(rdb).Refuse(errors.New("no route"))
			rdb.AddHook(dialHook(func() { dials++ }))
			for _, k := range inspectAll(background, l, manyKeys(keys)...) {
				wantIs(t, k.err, holdfast.ErrUnavailable)
				if !contains(k.err, "no route", fmt.Sprintf("%q", k.Key)) {
					t.Errorf("got %v", k.err)
				}
			}
			return dials
		}
		if one, two := dialsFor(100), dialsFor(200); one == 0 || two != one {
			t.Errorf("%d dials for two pipelines, want the %d of one", two, one)
		}
	})
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
			if (k.err != nil) != (i == 1) {
				t.Errorf("%q: %v", k.Key, k.err)
			}
		}
		wantIs(t, got[1].err, holdfast.ErrUnavailable)
		if asked["k1"] != 1 || asked["k2"] != 1 || asked["slow"] != 3 || asked["bad"] != 3 {
			t.Errorf("asked %v", asked)
		}
	})
}

func TestInspectAllLeavesTheLockerFreeBetweenPipelines(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		n := 0
		for s, err := range r.InspectAll(background, manyKeys(130)...) {
			if n == 0 {
				shutdown(t, r.Locker) // does not wait for this loop
			}
			if n++; n <= 128 && err != nil {
				t.Errorf("%q: %v", s.Key, err)
			} else if n > 128 {
				wantIs(t, err, holdfast.ErrClosed)
			}
		}
		if n != 130 {
			t.Errorf("%d pairs, want 130", n)
		}
		var none context.Context
		for _, k := range inspectAll(none, r.Locker, "k", "k2") {
			wantIs(t, k.err, holdfast.ErrInvalid)
		}
		if got := inspectAll(background, r.Locker); got != nil {
			t.Errorf("without keys: %v", got)
		}
	})
}

// InspectAll on a real server, on the shards of a Cluster and on several masters.

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

func TestInspectAllTellsOfOneShardWhileAnotherIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		b2 := servertest.NewBubble(t)
		links := map[string]*servertest.Link{"10.0.0.1:1": b.NewLink(), "10.0.0.2:1": b2.NewLink()}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:1"},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{
					{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: "10.0.0.1:1"}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "10.0.0.2:1"}}},
				}, nil
			},
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return links[addr].Dial(ctx, network, addr)
			},
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer func() { _ = rdb.Close(); time.Sleep(5 * time.Minute) }()
		l := newLocker(t, rdb)
		keys := manyKeys(140)
		inspectAll(background, l, keys[:8]...)
		links["10.0.0.1:1"].Delay(5 * time.Millisecond)
		links["10.0.0.2:1"].Delay(5 * time.Millisecond)
		began := time.Now()
		for _, k := range inspectAll(background, l, keys...) {
			if k.err != nil {
				t.Fatal(k.err)
			}
		}
		if took := time.Since(began); took != 20*time.Millisecond {
			t.Errorf("took %v, want two round trips of 10ms: one pipeline for each server at a time", took)
		}
		links["10.0.0.2:1"].CutUp()
		b.ResetCommands()
		began = time.Now()
		good := 0
		for _, k := range inspectAll(background, l, keys...) {
			if k.err == nil {
				good++
				continue
			}
			wantIs(t, k.err, holdfast.ErrUnavailable)
		}
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("took %v, want the second that the silent shard is waited for once", took)
		}
		if n := int(b.Commands()["evalsha"]); n != good || n < 30 || n > 110 {
			t.Errorf("%d keys told, %d asked for on the shard that answers", good, n)
		}
		links["10.0.0.2:1"].Heal()
	})
}

func TestInspectAllTellsWhatMostMastersSay(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithQuarantine(0))
		defer func() { time.Sleep(5 * time.Minute) }()
		keys := manyKeys(140)
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
			if took := time.Since(began); took > limit {
				t.Errorf("%s: took %v, want %v", what, took, limit)
			}
		}
		synctest.Wait() // two answers were enough
		for _, m := range ms {
			m.ResetCommands()
		}
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
		wantSplit := inspectAll(background, v.Locker, "k5")[0] // one silent, and the two others do not agree
		if wantSplit.err != nil || wantSplit.Held {
			t.Errorf("held by nobody on most masters: %+v, %v", wantSplit.State, wantSplit.err)
		}
		_ = ms[1].Redis.Set("k5", holdfast.Owner(lock))
		ms[2].Redis.Del("k8")
		check("one silent", len(keys), time.Second)
		if n := ms[0].Commands()["evalsha"]; n > 129 {
			t.Errorf("%d commands to the silent one, want those of one pipeline", n)
		}
		v.links[1].CutDown()
		for _, k := range inspectAll(background, v.Locker, "k5", "k6") {
			wantIs(t, k.err, holdfast.ErrUnavailable)
			if errors.Is(k.err, holdfast.ErrInvalid) || !contains(k.err, fmt.Sprintf("%q", k.Key), "no answer in time") {
				t.Errorf("two silent: %v", k.err)
			}
		}
		v.links[0].Heal()
		v.links[1].Heal()
		_ = lock.Release(background)
	})
}

func TestServerInspectAllAsksTheShardsOfARing(t *testing.T) {
	t.Parallel()
	one, two := servertest.Redis(t), servertest.Redis(t)
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr(), "two": two.Addr()}, HeartbeatFrequency: time.Hour})
	defer rdb.Close()
	sent := newPipelines()
	rdb.AddHook(sent)
	l := newLocker(t, rdb)
	keys := manyKeys(20)
	for _, key := range keys {
		obtain(t, l, key, holdfast.WithTTL(time.Minute), holdfast.WithoutRenewal())
	}
	until(t, "all are held", func() bool { // a busy machine may take longer than a second to answer
		n := 0
		sent.take()
		for _, k := range inspectAll(background, l, keys...) {
			if k.err == nil && k.Held && k.Token > 0 {
				n++
			}
		}
		return n == len(keys)
	})
	if lens := sent.take(); len(lens) != 2 || lens[0]+lens[1] != len(keys) {
		t.Errorf("pipelines of %v, want one for each shard", lens)
	}
	for i, s := range []*servertest.Server{one, two} {
		if s.CommandStats(t)["evalsha"] == 0 {
			t.Errorf("shard %d was not asked", i)
		}
	}
}

func TestInspectAllRefusesMastersThatAreOneServer(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		l, err := holdfast.NewRedLock([]*redis.Client{b.Client(), b.Client(), b.Client()}, holdfast.WithQuarantine(0))
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.TryAcquire(background, "k") // by which it comes to light
		wantIs(t, err, holdfast.ErrInvalid)
		for _, k := range inspectAll(background, l, "k", "k2") {
			wantIs(t, k.err, holdfast.ErrInvalid, holdfast.ErrUnavailable)
		}
		shutdown(t, l)
	})
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

// pipelines is a hook that notes how many commands came in each.
type pipelines struct {
	mu   *sync.Mutex
	lens *[]int
}

func newPipelines() pipelines { return pipelines{new(sync.Mutex), new([]int)} }

// take returns what was noted since the last time, in order of length.
func (p pipelines) take() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	lens := *p.lens
	*p.lens = nil
	slices.Sort(lens)
	return lens
}

func (pipelines) DialHook(next redis.DialHook) redis.DialHook { return next }
func (pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return next
}

func (p pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" { // not the handshake of a connection
			p.mu.Lock()
			*p.lens = append(*p.lens, len(cmds))
			p.mu.Unlock()
		}
		return next(ctx, cmds)
	}
}

// dialHook is told of each dial.
type dialHook func()

func (f dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		f()
		return next(ctx, network, addr)
	}
}
func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Of several masters one hangs: it is waited for once, and not asked for the keys behind.
func TestInspectAllGivesUpOneMasterThatHangs(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithQuarantine(0))
		defer func() { time.Sleep(5 * time.Minute) }()
		keys := manyKeys(1000)
		inspectAll(background, v.Locker, "k5")
		synctest.Wait()
		for _, l := range v.links {
			l.Delay(2 * time.Millisecond)
		}
		v.links[0].CutDown()
		var most int64
		for range v.InspectAll(background, keys...) {
			most = max(most, holdfast.Under(v.Locker))
		}
		if n := ms[0].Commands()["evalsha"]; n > 130 || most > 5 {
			t.Errorf("%d commands to the master that hangs, want those of one pipeline; %d calls under way", n, most)
		}
		v.links[0].Heal()
	})
}

func TestInspectAllOfAnEndedContextAsksNobody(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		defer func() { time.Sleep(5 * time.Minute) }()
		inspectAll(background, r.Locker, "k1")
		synctest.Wait()
		r.link.Delay(2 * time.Millisecond)
		ctx, cancel := context.WithCancel(background)
		cancel()
		b.ResetCommands()
		var most int64
		for _, err := range r.InspectAll(ctx, manyKeys(1000)...) {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			most = max(most, holdfast.Under(r.Locker))
		}
		time.Sleep(20 * time.Second)
		if n := b.Commands().Total(); n != 0 || most != 0 {
			t.Errorf("%d commands, %d calls under way", n, most)
		}
	})
}

func TestInspectAllDoesNotGoOnDiallingAMasterThatIsGone(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		dialsFor := func(keys int) int64 {
			var dials atomic.Int64
			var clients []*redis.Client
			for i, m := range ms {
				rdb := m.Client(func(o *redis.Options) { o.DialerRetries = 1 })
				clients = append(clients, rdb)
				if i == 0 {
					m.Link(rdb).Refuse(errors.New("no route"))
					rdb.AddHook(dialHook(func() { dials.Add(1) }))
				}
			}
			l, err := holdfast.NewRedLock(clients, holdfast.WithQuarantine(0))
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range inspectAll(background, l, manyKeys(keys)...) {
				if k.err != nil {
					t.Fatal(k.err)
				}
			}
			time.Sleep(time.Second) // for tries that nobody waits for
			return dials.Load()
		}
		if one, many := dialsFor(100), dialsFor(2000); one == 0 || many != one {
			t.Errorf("%d dials for many pipelines, want the %d of one", many, one)
		}
	})
}

// A shard that is silent does not cost another its tries: there a connection dies with the first command.
func TestInspectAllAsksOneShardAgainWhileAnotherIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		b2 := servertest.NewBubble(t)
		links := map[string]*servertest.Link{"10.0.0.1:1": b.NewLink(), "10.0.0.2:1": b2.NewLink()}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"10.0.0.1:1"},
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{
					{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: "10.0.0.1:1"}}},
					{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "10.0.0.2:1"}}},
				}, nil
			},
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return links[addr].Dial(ctx, network, addr)
			},
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer func() { _ = rdb.Close(); time.Sleep(5 * time.Minute) }()
		l := newLocker(t, rdb)
		keys := manyKeys(600)
		inspectAll(background, l, keys[:100]...)
		synctest.Wait()
		links["10.0.0.2:1"].CutUp() // hangs
		var n atomic.Int64
		links["10.0.0.1:1"].OnCommand(func(args []string) servertest.Verdict {
			if n.Add(1) == 1 {
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		good := 0
		var sample error
		for _, k := range inspectAll(background, l, keys...) {
			if k.err == nil {
				good++
			} else if !contains(k.err, "no answer in time") {
				sample = k.err
			}
		}
		if good < 200 || sample != nil {
			t.Errorf("%d of %d told; another error is %v", good, len(keys), sample)
		}
		links["10.0.0.2:1"].Heal()
	})
}
