package core_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Sentinel fails over while the old master lives on, as a replica, with all subscriptions. With
// their next look waiters subscribe to the new one.
func TestServerSentinelFailoverWhereTheOldMasterLives(t *testing.T) {
	t.Parallel()
	p := startSentinel(t)
	const n = 4
	var told [n]reported
	var ls []*core.Locker
	for i := range n {
		ls = append(ls, newLocker(t, p.client(t), core.WithTrace(told[i].trace())))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var turns [n]atomic.Int64
	for i, l := range ls {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = l.Do(ctx, "k", func(context.Context) error { turns[i].Add(1); return nil })
			}
		})
	}
	each := func(what string) {
		t.Helper()
		var before [n]int64
		for i := range turns {
			before[i] = turns[i].Load()
		}
		until(t, what, func() bool {
			for i := range turns {
				if turns[i].Load() < before[i]+20 {
					return false
				}
			}
			return true
		})
	}
	each("turns before the failover")
	until(t, "Sentinel begins", func() bool { return p.sentinel.Failover(background, "main").Err() == nil })
	p.promoted(t)
	each("turns after it")
	subscribed := func(s *servertest.Server) int {
		channels, err := s.Client().PubSubChannels(background, "holdfast:inbox:*").Result()
		if err != nil {
			return -1
		}
		return len(channels)
	}
	until(t, "all subscribe to the new master", func() bool { return subscribed(p.replica) == n })
	cancel()
	all.Wait()

	// A waiter is told: it looks by itself every two seconds.
	lock := obtain(t, ls[0], "k")
	got := contend(t, ls[1], "k")
	p.replica.ResetStats(t)
	release(t, lock)
	release(t, won(t, got))
	if n := p.replica.CommandStats(t)["publish"]; n < 1 {
		t.Errorf("%d messages for a hand-over on the new master", n)
	}
	// By themselves, and not when Sentinel, ten seconds later, makes the old master a replica and has it drop them.
	for i := range told {
		if n := told[i].count("subscribing anew"); n < 1 || n > 3 {
			t.Errorf("reported: %v", told[i].all())
		}
	}
	for _, l := range ls {
		shutdown(t, l)
	}
}

// A user whose scripts may not publish, on a real server.
func TestServerThatRefusesToPublish(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	if err := server.Client().Do(background, "ACL", "SETUSER", "u", "reset", "on", ">secret", "~*", "&*", "+@all", "-publish").Err(); err != nil {
		t.Fatal(err)
	}
	var told reported
	process := func() *core.Locker {
		rdb := server.Client(func(o *redis.Options) { o.Username, o.Password, o.DisableIdentity = "u", "secret", true })
		return newLocker(t, rdb, core.WithTrace(told.trace()))
	}
	a, b, admin := process(), process(), server.Client()
	lock := obtain(t, a, "k")
	got := contend(t, b, "k")
	until(t, "the waiter has named its inbox", func() bool {
		return strings.Contains(strings.Join(admin.HVals(background, "{k}:~wait").Val(), " "), "holdfast:inbox")
	})
	release(t, lock)
	if admin.HGet(background, "{k}:~wait", "mute").Val() == "" {
		t.Error("not noticed")
	}
	next := won(t, got)
	if next.Token() <= lock.Token() {
		t.Errorf("token %d after %d", next.Token(), lock.Token())
	}
	got = contend(t, a, "k")
	until(t, "the report", func() bool { return told.count("PUBLISH") == 1 })
	release(t, next)
	release(t, won(t, got))
	if len(told.all()) != 1 {
		t.Errorf("reported: %v", told.all())
	}
	shutdown(t, a)
	shutdown(t, b)
	wantOnlyCompanions(t, admin)
}
