package holdfast_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// The same as in bubbles, by a Redis user that may PUBLISH to inboxes and listen there, and by Lockers that may do what the
// package's description says and no more.
func TestServerForgedMessages(t *testing.T) {
	t.Parallel()
	const many = 10_000
	server := servertest.Redis(t)
	admin := server.Client()
	attacker := aclUser(t, server, "attacker", "&holdfast:inbox:* +publish +psubscribe +ping")
	if err := attacker.Get(background, "job:1").Err(); !contains(err, "NOPERM") {
		t.Fatalf("the attacker may GET: %v", err)
	}
	var told reported
	app := func() *holdfast.Locker {
		return newLocker(t, aclUser(t, server, "app", leastACL), holdfast.WithTrace(told.trace()))
	}
	holder, a, victim := app(), app(), app()
	listen := attacker.PSubscribe(background, "holdfast:inbox:*")
	defer listen.Close()
	if _, err := listen.Receive(background); err != nil {
		t.Fatal(err)
	}
	waits := func(l *holdfast.Locker, key string) <-chan *holdfast.Lock {
		locks := make(chan *holdfast.Lock, 1)
		wait(t, &replica{Locker: l}, key, locks)
		until(t, "a waiter that can be notified", func() bool {
			return strings.Contains(strings.Join(admin.HVals(background, "{"+key+"}:~wait").Val(), " "), "holdfast:inbox:")
		})
		return locks
	}
	// granted has l wait for key, and returns what the attacker hears of the grant.
	granted := func(l *holdfast.Locker, key string) (*holdfast.Lock, *redis.Message) {
		t.Helper()
		lock := obtain(t, holder, key)
		locks := waits(l, key)
		release(t, lock)
		msg, err := listen.ReceiveMessage(bounded(t, hang))
		must(t, err)
		return <-locks, msg
	}
	publish := func(channel string, n int, texts ...string) {
		t.Helper()
		for sent := 0; sent < n; {
			pipe := attacker.Pipeline()
			for ; sent < n && pipe.Len() < 1000; sent++ {
				pipe.Publish(background, channel, texts[sent%len(texts)])
			}
			cmds, err := pipe.Exec(background)
			must(t, err)
			if heard := cmds[0].(*redis.IntCmd).Val(); heard != 1 {
				t.Fatalf("%d clients received a message, want the Locker alone", heard)
			}
		}
	}
	keys := func() []string {
		all := admin.Keys(background, "*").Val()
		slices.Sort(all)
		return all
	}

	lock, first := granted(victim, "job:1")
	release(t, lock)
	inbox := first.Channel
	lock, grant := granted(a, "job:1")
	if grant.Channel == inbox {
		t.Fatal("one inbox for two Lockers")
	}
	_ = listen.Close() // it would receive its own messages
	until(t, "the attacker listens no more", func() bool { return admin.PubSubNumPat(background).Val() == 0 })
	must(t, admin.Set(background, "job:config", "on", 0).Err())
	busy := obtain(t, holder, "job:2")
	locks := waits(victim, "job:2")
	before := keys()
	server.ResetStats(t)
	now := time.Now().UnixMicro()
	publish(inbox, many,
		grant.Payload, // of a lock that is held
		first.Payload, // of the victim's own, which was released
		fmt.Sprintf("on\n%d\n%d\njob:config", now, now),
		fmt.Sprintf("%s\n%d\n%d\njob:config", holdfast.Owner(lock), now, now),
		fmt.Sprintf("%s\n%d\n%d\njob:2", holdfast.Owner(busy), now, now), // which the attacker cannot know
		fmt.Sprintf("AAAAAAAAAAAAAAAAAAAAAA:api\n%d\n%d\njob:3", now, now),
	)
	release(t, busy)
	within(t, "the waiter", func() { busy = <-locks })
	// Looks and renewals, the release, and one undo of the victim's own owner.
	if n := server.CommandStats(t); n["evalsha"]+n["eval"] > 100 || n["publish"] < many {
		t.Errorf("%v", n)
	}
	for _, l := range []*holdfast.Lock{lock, busy} {
		if v := admin.Get(background, l.Key()).Val(); v != holdfast.Owner(l) || l.Err() != nil {
			t.Errorf("%s: redis has %q, want %q: %v", l.Key(), v, holdfast.Owner(l), l.Err())
		}
	}
	_, err := holder.TryAcquire(background, "job:1")
	wantIs(t, err, holdfast.ErrNotAcquired)
	if v := admin.Get(background, "job:config").Val(); v != "on" {
		t.Errorf("a key of the application is %q", v)
	}
	ended, _, _ := strings.Cut(first.Payload, "\n")
	for _, key := range keys() {
		if !slices.Contains(before, key) && key != "{job:1}:~gone:"+ended {
			t.Errorf("%q was written", key)
		}
	}
	if n := told.count("messages that were not for this Locker were dropped", inbox); n != len(told.all()) {
		t.Errorf("reported: %v", told.all())
	}
	release(t, lock)
	release(t, busy)
	for _, l := range []*holdfast.Locker{holder, a, victim} {
		shutdown(t, l)
	}
}
