package holdfast_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// bubble runs fn in virtual time with a server of its own. What fn leaves behind, a goroutine say, fails it.
func bubble(t *testing.T, fn func(t *testing.T, b *servertest.Bubble)) {
	t.Helper()
	processor.Lock()
	defer processor.Unlock()
	synctest.Test(t, func(t *testing.T) {
		fn(t, servertest.NewBubble(t))
		synctest.Wait() // a grant may be here before the answer to the release
	})
}

// processor is for one bubble at a time, which computes all the time, so that tests on real servers go on beside it.
var processor sync.Mutex

// replica is one process: a Locker with a client and a link of its own.
type replica struct {
	*holdfast.Locker
	rdb  *redis.Client
	link *servertest.Link
}

// newReplica starts a process on the server of b.
func newReplica(t *testing.T, b *servertest.Bubble, opts ...holdfast.Option) *replica {
	t.Helper()
	rdb := b.Client()
	return &replica{newLocker(t, rdb, opts...), rdb, b.Link(rdb)}
}

// newInline is newReplica with a client that looks at deadlines while it reads, so that a command runs on its caller's
// goroutine while no other is under way.
func newInline(t *testing.T, b *servertest.Bubble, opts ...holdfast.Option) *replica {
	t.Helper()
	rdb := b.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	return &replica{newLocker(t, rdb, opts...), rdb, b.Link(rdb)}
}

// newLocker is holdfast.New where nothing is wrong.
func newLocker(t *testing.T, rdb redis.UniversalClient, opts ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// warm teaches the server the scripts, so that every command under test is one EVALSHA.
func warm(t *testing.T, r *replica) {
	t.Helper()
	lock := acquire(t, r.Locker, "warm-up")
	if err := lock.Extend(background, time.Hour); err != nil {
		t.Fatal(err)
	}
	release(t, lock)
}

// openInbox lets r wait in line once, so that it can be told of grants from the first look on.
func openInbox(t *testing.T, b *servertest.Bubble, r *replica) {
	t.Helper()
	other := newReplica(t, b)
	lock := acquire(t, other.Locker, "inbox")
	waits := call(background, r, "inbox")
	release(t, lock)
	release(t, got(t, waits))
	shutdown(t, other.Locker)
}

// empty checks that nothing is left in r's Locker and, after a while, in Redis.
func empty(t *testing.T, b *servertest.Bubble, rs ...*replica) {
	t.Helper()
	for _, r := range rs {
		synctest.Wait()
		if n := holdfast.Queues(r.Locker); n != 0 {
			t.Errorf("%d queues left", n)
		}
		if n := holdfast.Tenures(r.Locker); n != 0 {
			t.Errorf("%d tenures left in the inbox", n)
		}
		shutdown(t, r.Locker)
	}
	time.Sleep(5 * time.Minute)
	if keys := b.Redis.Keys(); len(keys) != 0 {
		t.Errorf("left behind: %v", keys)
	}
}

// wantOnlyCompanions fails the test if a lock is left on rdb, or a key that does not expire.
func wantOnlyCompanions(t *testing.T, rdb *redis.Client) {
	t.Helper()
	keys, err := rdb.Keys(background, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if !strings.Contains(key, ":~") {
			t.Errorf("%q was left behind", key)
		}
		if ttl := rdb.PTTL(background, key).Val(); ttl == -1 {
			t.Errorf("%q never expires", key)
		}
	}
}
