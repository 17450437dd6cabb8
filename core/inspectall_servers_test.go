package core_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// InspectAll on a real server, on the shards of a Cluster and on several masters.

func TestServerInspectAll(t *testing.T) {
	t.Parallel()
	srv := servertest.Redis(t)
	l := newLocker(t, srv.Client())
	lock := obtain(t, l, "k7", core.WithLabel("me"))
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
				wantIs(t, k.err, core.ErrUnavailable)
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
			wantIs(t, k.err, core.ErrUnavailable)
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
		v := ms.voter(t, core.WithQuarantine(0))
		defer func() { time.Sleep(5 * time.Minute) }()
		keys := manyKeys(140)
		lock := acquire(t, v.Locker, "k5", core.WithLabel("me"))
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
		for _, m := range ms {
			m.ResetCommands()
		}
		check("all there", 20, 0)
		for i, m := range ms {
			if n := m.Commands()["evalsha"]; n != 20 {
				t.Errorf("master %d: %d commands, want 20", i, n)
			}
		}
		v.links[0].CutDown()
		ms[0].ResetCommands()
		_ = ms[1].Redis.Set("k5", core.Owner(lock)+"x")
		wantSplit := inspectAll(background, v.Locker, "k5")[0] // one silent, and the two others do not agree
		if wantSplit.err != nil || wantSplit.Held {
			t.Errorf("held by nobody on most masters: %+v, %v", wantSplit.State, wantSplit.err)
		}
		_ = ms[1].Redis.Set("k5", core.Owner(lock))
		ms[2].Redis.Del("k8")
		check("one silent", len(keys), time.Second)
		if n := ms[0].Commands()["evalsha"]; n > 129 {
			t.Errorf("%d commands to the silent one, want those of one pipeline", n)
		}
		v.links[1].CutDown()
		for _, k := range inspectAll(background, v.Locker, "k5", "k6") {
			wantIs(t, k.err, core.ErrUnavailable)
			if errors.Is(k.err, core.ErrInvalid) || !contains(k.err, fmt.Sprintf("%q", k.Key), "no answer in time") {
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
		obtain(t, l, key, core.WithTTL(time.Minute), core.WithoutRenewal())
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
		l, err := core.NewRedLock([]*redis.Client{b.Client(), b.Client(), b.Client()}, core.WithQuarantine(0))
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.TryAcquire(background, "k") // by which it comes to light
		wantIs(t, err, core.ErrInvalid)
		for _, k := range inspectAll(background, l, "k", "k2") {
			wantIs(t, k.err, core.ErrInvalid, core.ErrUnavailable)
		}
		shutdown(t, l)
	})
}
