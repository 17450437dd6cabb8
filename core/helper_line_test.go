package holdfast_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// watch looks at the locks of one key, again and again until end: never do two of them count as held, and
// whichever does has the key in Redis, for at least as long as its deadline says.
type watch struct {
	t    *testing.T
	b    *servertest.Bubble
	key  string
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex // guards all below; not held while a lock is asked
	locks []*holdfast.Lock
	last  int64
	added time.Time // the latest of them
	looks int
}

func (w *watch) look() {
	w.mu.Lock()
	locks := append([]*holdfast.Lock(nil), w.locks...)
	w.mu.Unlock()
	var held *holdfast.Lock
	for _, lk := range locks {
		deadline := time.Until(lk.Deadline()) // before Redis is asked: it may be moved in between
		if lk.Err() != nil {
			continue
		}
		if held != nil {
			w.t.Errorf("two holders, with tokens %d and %d", held.Token(), lk.Token())
		}
		held = lk
		value, _ := w.b.Redis.Get(w.key)
		switch ttl := w.b.Redis.TTL(w.key); {
		case lk.Err() != nil: // meanwhile
		case value != holdfast.Owner(lk):
			w.t.Errorf("token %d counts as held, and redis has %q", lk.Token(), value)
		case deadline > ttl:
			w.t.Errorf("token %d: the deadline is %v later than the lease", lk.Token(), deadline-ttl)
		}
		w.mu.Lock()
		w.looks++
		w.mu.Unlock()
	}
}

// pause is until the next look: short after a lock was added and where one is about to end. In between nothing goes wrong but
// by a command to Redis, and that stays wrong until a renewal.
func (w *watch) pause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.added) < 300*time.Millisecond {
		return 3 * time.Millisecond
	}
	for _, lk := range w.locks {
		if d := time.Until(lk.Deadline()); d > -100*time.Millisecond && d < 300*time.Millisecond {
			return 3 * time.Millisecond
		}
	}
	return 40 * time.Millisecond
}

// add has lk watched, from now on.
func (w *watch) add(lk *holdfast.Lock) {
	w.t.Helper()
	w.mu.Lock()
	if lk.Token() <= w.last {
		w.t.Errorf("token %d after %d", lk.Token(), w.last)
	}
	w.last = lk.Token()
	w.locks = append(w.locks, lk)
	w.added = time.Now()
	w.mu.Unlock()
	w.look()
}

// get waits for the lock that a call comes to, has it watched and returns it and how long that took.
func (w *watch) get(c <-chan result) (*holdfast.Lock, time.Duration) {
	w.t.Helper()
	begin := time.Now()
	lk := got(w.t, c)
	w.add(lk)
	return lk, time.Since(begin)
}

// turn has r wait for the key while holder has it for d, and returns how long it took from the release on. r holds it for long
// enough to be renewed.
func (w *watch) turn(holder, r *replica, d time.Duration) time.Duration {
	w.t.Helper()
	lock := acquire(w.t, holder.Locker, w.key)
	w.add(lock)
	c := call(background, r, w.key)
	time.Sleep(d)
	release(w.t, lock)
	lock, waited := w.get(c)
	time.Sleep(5 * time.Second)
	release(w.t, lock)
	return waited
}

// serve waits until all calls have had the lock, each for a moment, and returns how long that took.
func (w *watch) serve(calls ...<-chan result) time.Duration {
	w.t.Helper()
	begin := time.Now()
	var all sync.WaitGroup
	for _, c := range calls {
		all.Go(func() {
			res := <-c
			if res.err != nil {
				w.t.Errorf("a waiter failed: %v", res.err)
				return
			}
			w.add(res.lock)
			time.Sleep(20 * time.Millisecond)
			if err := res.lock.Release(background); err != nil {
				w.t.Errorf("Release: %v", err)
			}
		})
	}
	all.Wait()
	return time.Since(begin)
}

// end stops the watching. It fails a test in which nothing was seen.
func (w *watch) end() {
	w.t.Helper()
	w.stop()
	<-w.done
	if w.looks == 0 {
		w.t.Error("no lock was seen held: this shows nothing")
	}
}

// watchKey begins to watch key.
func watchKey(t *testing.T, b *servertest.Bubble, key string) *watch {
	ctx, cancel := context.WithCancel(background)
	w := &watch{t: t, b: b, key: key, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.look()
			time.Sleep(w.pause())
		}
	}()
	t.Cleanup(cancel)
	return w
}

// lineUp has n processes wait for the key, in this order, and able to be told of grants.
func lineUp(t *testing.T, b *servertest.Bubble, n int, key string, opts ...holdfast.Option) ([]*replica, []<-chan result) {
	t.Helper()
	rs, calls := make([]*replica, n), make([]<-chan result, n)
	for i := range n {
		rs[i] = newReplica(t, b, opts...)
		warm(t, rs[i])
		calls[i] = call(background, rs[i], key)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
	}
	return rs, calls
}

// queued is a line that is watched: holder has the lock, and the others wait for it in their order.
type queued struct {
	*watch
	holder *replica
	lock   *holdfast.Lock
	rs     []*replica
	calls  []<-chan result
}

// inQueue runs fn in a bubble where n processes stand in line for k. It must leave nothing behind.
func inQueue(t *testing.T, n int, fn func(t *testing.T, b *servertest.Bubble, q *queued), opts ...holdfast.Option) {
	t.Helper()
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		q := &queued{holder: newReplica(t, b, opts...)}
		q.lock = acquire(t, q.holder.Locker, "k")
		q.rs, q.calls = lineUp(t, b, n, "k", opts...)
		q.watch = watchKey(t, b, "k")
		q.add(q.lock)
		fn(t, b, q)
		q.end()
		empty(t, b, append(q.rs, q.holder)...)
	})
}

// inLine is how many stand in line for k, by what Redis has of them.
func inLine(t *testing.T, b *servertest.Bubble) int {
	t.Helper()
	list, _ := b.Redis.ZMembers(lineKey)
	known, _ := b.Redis.HKeys("{k}:~wait")
	if len(list) != len(known) {
		t.Errorf("%d places, %d owners", len(list), len(known))
	}
	return len(list)
}

// lineOf are those in line for k, without shares first come, first served.
func lineOf(rdb redis.UniversalClient) []string {
	ids := []string{}
	for _, m := range rdb.ZRange(background, lineKey, 0, -1).Val() {
		if _, place, ok := strings.Cut(m, " "); ok {
			ids = append(ids, place[16:])
		}
	}
	return ids
}
