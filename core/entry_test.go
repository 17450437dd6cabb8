package holdfast_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Calls with one id hold the lock together, in whatever order they leave; the last one out frees it.
func TestReentryIDAcrossProcesses(t *testing.T) {
	for _, firstOut := range []int{0, 1, 2} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			id := holdfast.WithReentryID("job-7")
			var rs []*replica
			var locks []*holdfast.Lock
			for range 3 {
				rs = append(rs, newReplica(t, b))
			}
			locks = append(locks, acquire(t, rs[0].Locker, "k", id))
			stranger := newReplica(t, b)
			behind := call(background, stranger, "k")
			for _, r := range rs[1:] { // in front of the waiters
				locks = append(locks, got(t, call(background, r, "k", id)))
			}
			_, err := stranger.TryAcquire(background, "k", holdfast.WithReentryID("job-8"))
			wantIs(t, err, holdfast.ErrNotAcquired)
			for _, lk := range locks {
				if lk.Token() != locks[0].Token() {
					t.Errorf("tokens %d and %d", lk.Token(), locks[0].Token())
				}
			}
			for i := range locks {
				time.Sleep(time.Minute) // all renew
				for _, lk := range locks[i:] {
					if err := lk.Err(); err != nil {
						t.Fatal(err)
					}
					if left := time.Until(lk.Deadline()); left > b.Redis.TTL("k") {
						t.Errorf("deadline in %v, the lease ends in %v", left, b.Redis.TTL("k"))
					}
				}
				notYet(t, behind)
				out := (firstOut + i) % len(locks)
				if i > 0 {
					out = i
				}
				locks[i], locks[out] = locks[out], locks[i]
				release(t, locks[i])
				wantIs(t, locks[i].Context(background).Err(), context.Canceled)
			}
			next := got(t, behind)
			if next.Token() <= locks[0].Token() {
				t.Errorf("token %d after %d", next.Token(), locks[0].Token())
			}
			release(t, next)
			empty(t, b, append(rs, stranger)...)
		})
	}
}

// Commands that are sent twice count once, both ways.
func TestReentryIDAndResends(t *testing.T) {
	for name, v := range map[string]servertest.Verdict{"reply lost": servertest.LoseReply, "request lost": servertest.LoseRequest} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				id := holdfast.WithReentryID("job")
				one, two := newReplica(t, b), newReplica(t, b)
				warm(t, one)
				warm(t, two)
				a := acquire(t, one.Locker, "k", id)
				two.link.OnCommand(first("acquire", v))
				c := got(t, call(background, two, "k", id))
				two.link.OnCommand(first("forget", v))
				release(t, c)
				if err := a.Extend(background, time.Minute); err != nil {
					t.Errorf("after the release of the other: %v", err)
				}
				one.link.OnCommand(first("forget", v))
				release(t, a)
				if b.Redis.Exists("k") {
					t.Error("not freed by the last one")
				}
				empty(t, b, one, two)
			})
		})
	}
}

// One that dies holds the lock no longer than its own lease; one that hangs is told that the others went on.
func TestReentryIDAndTheDead(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		id := holdfast.WithReentryID("job")
		one, two, three := newReplica(t, b), newReplica(t, b), newReplica(t, b)
		a := acquire(t, one.Locker, "k", id)
		c := acquire(t, two.Locker, "k", id)
		behind := call(background, three, "k")
		one.link.CutUp()
		time.Sleep(20 * time.Second)
		wantIs(t, a.Err(), holdfast.ErrLost)
		if err := c.Err(); err != nil {
			t.Errorf("the living one: %v", err)
		}
		notYet(t, behind)
		release(t, c)
		synctest.Wait()
		next := got(t, behind)
		one.link.Heal()
		time.Sleep(time.Second)
		wantIs(t, a.Release(background), holdfast.ErrLost)
		if err := next.Extend(background, time.Minute); err != nil {
			t.Errorf("after the release of the dead one: %v", err)
		}
		release(t, next)
		empty(t, b, one, two, three)
	})
}

// One context may enter again under the id it holds the lock with, also within a process that queues for it.
func TestReentryIDWithinAProcess(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		id := holdfast.WithReentryID("job")
		r := newReplica(t, b)
		openInbox(t, b, r)
		outer := got(t, call(background, r, "k", id))
		plain := call(background, r, "k")
		inner := got(t, call(outer.Context(background), r, "k", id))
		_, err := r.Acquire(outer.Context(background), "k")
		wantIs(t, err, holdfast.ErrSelfDeadlock)
		release(t, inner)
		notYet(t, plain)
		if err := outer.Err(); err != nil {
			t.Error(err)
		}
		release(t, outer)
		release(t, got(t, plain))

		// Granted through the line: the others are let in all the same.
		plain = call(background, r, "k")
		lock := got(t, plain)
		one := call(background, r, "k", id)
		release(t, lock)
		held := got(t, one)
		release(t, acquire(t, r.Locker, "k", id))
		if err := held.Extend(background, time.Minute); err != nil {
			t.Error(err)
		}
		release(t, held)
		empty(t, b, r)
	})
}

// A grant that is delivered late, when its tenure is over and others hold the lock under its owner id, frees nothing.
func TestReentryIDAndAStrayGrant(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		id := holdfast.WithReentryID("job")
		r, two := newReplica(t, b), newReplica(t, b)
		openInbox(t, b, r)
		lock := acquire(t, two.Locker, "k")
		late := make(chan struct{})
		r.link.OnMessage(func(string, string) servertest.Verdict { return servertest.HoldReply(late) })
		one := call(background, r, "k", id)
		release(t, lock)
		held := got(t, one) // by its own look
		other := acquire(t, two.Locker, "k", id)
		release(t, held)
		close(late)
		time.Sleep(time.Second)
		if err := other.Extend(background, time.Minute); err != nil {
			t.Error(err)
		}
		release(t, other)
		empty(t, b, r, two)
	})
}

// An acquire that arrives after its own tenure was undone lets nobody in.
func TestReentryIDAndADelayedAcquire(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		id := holdfast.WithReentryID("job")
		one, two := newReplica(t, b), newReplica(t, b)
		warm(t, one)
		warm(t, two)
		late := make(chan struct{})
		one.link.OnCommand(first("acquire", servertest.HoldRequest(late)))
		a := got(t, call(background, one, "k", id)) // sent twice
		c := acquire(t, two.Locker, "k", id)
		release(t, a)
		close(late)
		time.Sleep(time.Second)
		release(t, c)
		if b.Redis.Exists("k") {
			t.Errorf("not freed by the last one: %v to go", b.Redis.TTL("k"))
		}
		empty(t, b, one, two)
	})
}

// A member that leaves takes the rest of its lease along: the lock lives for as long as the others need it.
func TestReentryIDLeavesNoLeaseBehind(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		id := holdfast.WithReentryID("job-7")
		short, long, dead, stranger := newReplica(t, b), newReplica(t, b), newReplica(t, b), newReplica(t, b)
		first := acquire(t, short.Locker, "k", id, holdfast.WithTTL(time.Second))
		second := acquire(t, long.Locker, "k", id, holdfast.WithTTL(time.Hour))
		third := acquire(t, dead.Locker, "k", id, holdfast.WithTTL(time.Minute))
		time.Sleep(10 * time.Second)
		release(t, second)
		if ttl := b.Redis.TTL("k"); ttl > time.Minute {
			t.Errorf("the lock lives for %v, the longest lease left is a minute", ttl)
		}
		dead.link.CutUp() // it dies
		time.Sleep(2 * time.Minute)
		if err := first.Err(); err != nil {
			t.Fatal(err)
		}
		another := acquire(t, long.Locker, "k", id, holdfast.WithTTL(time.Hour))
		release(t, another)
		if fields, _ := b.Redis.HKeys("{k}:~entry"); len(fields) != 4 { // of, id, token and the first
			t.Errorf("the dead are still listed: %q", fields)
		}
		if ttl := b.Redis.TTL("k"); ttl > time.Second {
			t.Errorf("the lock lives for %v, the only lease left is a second", ttl)
		}
		if err := first.Err(); err != nil {
			t.Fatal(err)
		}
		short.link.CutUp() // the last one dies, too
		time.Sleep(time.Second)
		lock := acquire(t, stranger.Locker, "k")
		wantIs(t, first.Err(), holdfast.ErrLost)
		wantIs(t, third.Err(), holdfast.ErrLost)
		release(t, lock)
		short.link.Heal()
		dead.link.Heal()
		for _, lk := range []*holdfast.Lock{first, third} {
			wantIs(t, lk.Release(background), holdfast.ErrLost)
		}
		empty(t, b, short, long, dead, stranger)
	})
}

// Something else at the name of the hash fails the call, and leaves no lock behind that nobody has.
func TestReentryIDWhereTheHashIsOfAnotherType(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		b.Redis.Set("{k}:~entry", "somebody's")
		_, err := r.TryAcquire(background, "k", holdfast.WithReentryID("job"))
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, "WRONGTYPE") {
			t.Errorf("got %v, want the reason", err)
		}
		synctest.Wait()
		if b.Redis.Exists("k") {
			t.Errorf("a lock that nobody has, for %v", b.Redis.TTL("k"))
		}
		if got, _ := b.Redis.Get("{k}:~entry"); got != "somebody's" {
			t.Errorf("what was there is now %q", got)
		}
		release(t, acquire(t, r.Locker, "k"))
		shutdown(t, r.Locker)
	})
}

// If the hash becomes of another type while the lock is held, its holder still lets go of the lock.
func TestReentryIDWhereTheHashBecomesOfAnotherType(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithReentryID("job"))
		b.Redis.Del("{k}:~entry")
		b.Redis.Set("{k}:~entry", "somebody's")
		release(t, lock)
		if b.Redis.Exists("k") {
			t.Errorf("the lock stays for %v", b.Redis.TTL("k"))
		}
		if got, _ := b.Redis.Get("{k}:~entry"); got != "somebody's" {
			t.Errorf("what was there is now %q", got)
		}
		release(t, acquire(t, r.Locker, "k"))
		shutdown(t, r.Locker)
	})
}
