package core_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// pair is a master with a replica, and somebody who promotes the replica when the master dies.
type pair struct {
	master, replica *servertest.Server
	client          func(*testing.T) redis.UniversalClient // follows the promotion
	sentinel        *redis.SentinelClient                  // where there is one
}

// replicated waits until the replica has all that was written so far.
func (p *pair) replicated(t *testing.T) {
	t.Helper()
	if n, err := p.master.Client().Wait(background, 1, hang).Result(); err != nil || n != 1 {
		t.Fatalf("WAIT: %d replicas, %v", n, err)
	}
}

// promoted waits until the replica is the master.
func (p *pair) promoted(t *testing.T) {
	t.Helper()
	rdb := p.replica.Client()
	until(t, "the replica is promoted", func() bool { return part(rdb, "role:master") })
}

// part tells whether what rdb says about its part in replication contains text.
func part(rdb *redis.Client, text string) bool {
	return strings.Contains(rdb.Info(background, "replication").Val(), text)
}

// contend has l acquire key and returns when it has seen the key held. The channel is closed without a lock
// where it fails.
func contend(t *testing.T, l *core.Locker, key string) <-chan *core.Lock {
	t.Helper()
	got, seen := make(chan *core.Lock, 1), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(got)
		trace := &core.Trace{Waiting: func(core.Event) { once.Do(func() { close(seen) }) }}
		lock, err := l.Acquire(t.Context(), key, core.WithTrace(trace))
		if err == nil {
			got <- lock
		} else if t.Context().Err() == nil {
			t.Errorf("Acquire(%q) in a failover: %v", key, err)
		}
	}()
	within(t, "the rival waits", func() { <-seen })
	return got
}

// won waits for the lock that contend is after.
func won(t *testing.T, got <-chan *core.Lock) (lock *core.Lock) {
	t.Helper()
	within(t, "the rival gets the lock", func() { lock = <-got })
	if lock == nil {
		t.FailNow()
	}
	return lock
}

// waits tells whether contend has not got the lock yet.
func waits(got <-chan *core.Lock) bool { return len(got) == 0 }

// report collects what a Trace tells.
type report struct {
	mu     sync.Mutex
	lost   []core.Event
	at     time.Time // of the first loss
	failed []core.Event
}

func (r *report) trace() *core.Trace {
	return &core.Trace{
		Lost: func(e core.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.lost = append(r.lost, e); len(r.lost) == 1 {
				r.at = time.Now()
			}
		},
		NodeError: func(e core.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failed = append(r.failed, e)
		},
	}
}

func (r *report) wantNoLoss(t *testing.T) {
	t.Helper()
	if len(r.lost) != 0 {
		t.Errorf("Trace.Lost: got %+v, want none", r.lost)
	}
}

// loseInFailover has the master die with locks on key that its replica has not heard of. On the new master,
// where nobody has them, a rival that waited gets one at once, with a larger token. Its holder hears of it at
// the next renewal, long before the lease would have ended, or when it releases.
func loseInFailover(t *testing.T, p *pair, key string) {
	const ttl = 9 * time.Second
	var told report
	l, rival := newLocker(t, p.client(t), core.WithTTL(ttl), core.WithTrace(told.trace())), newLocker(t, p.client(t))
	p.replicated(t)
	p.replica.CutReplication(t)
	lock, silent := obtain(t, l, key), obtain(t, l, "{"+key+"}silent", core.WithoutRenewal())
	waiter := contend(t, rival, key)
	deadline := lock.Deadline()
	if !waits(waiter) {
		t.Error("two holders before the failover")
	}

	p.master.Kill()
	p.promoted(t)
	next := won(t, waiter)
	begin := time.Now()
	if next.Token() <= lock.Token() {
		t.Errorf("token %d after %d", next.Token(), lock.Token())
	}
	within(t, "the holder is told", func() { <-lock.Context().Done() })
	wantIs(t, context.Cause(lock.Context()), core.ErrLost)
	wantIs(t, lock.Err(), core.ErrLost)
	wantIs(t, lock.Release(background), core.ErrLost)
	wantIs(t, silent.Release(background), core.ErrLost)

	shutdown(t, l)
	if len(told.lost) != 1 || told.lost[0].Key != key || told.lost[0].Token != lock.Token() {
		t.Fatalf("Trace.Lost: got %+v, want once %q with token %d", told.lost, key, lock.Token())
	}
	wantIs(t, told.lost[0].Err, core.ErrLost)
	if !told.at.Before(deadline) {
		t.Error("told at the end of the lease and not by a renewal")
	}
	if late := told.at.Sub(begin); late > ttl/3+core.Patience(ttl) {
		t.Errorf("told %v after the rival had the lock, want a third of the lease, %v", late, ttl/3)
	}

	// What the first holder sent meanwhile did not touch the second one's lock.
	if err := next.Err(); err != nil {
		t.Errorf("the second holder: %v", err)
	}
	rdb := p.replica.Client()
	if got := rdb.Get(background, key).Val(); got != core.Owner(next) {
		t.Errorf("the key has %q, want the second holder's", got)
	}
	release(t, next)
	shutdown(t, rival)
	wantOnlyCompanions(t, rdb)
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
