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

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
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
				for _, r := range []*replica{one, two} {
					release(t, acquire(t, r.Locker, "k", id)) // or the command that is lost is one that the server does not know
				}
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
		if fields, _ := b.Redis.HKeys(heldKey); len(fields) != 3 { // of, cap and the first
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
		b.Redis.Set(heldKey, "somebody's")
		_, err := r.TryAcquire(background, "k", holdfast.WithReentryID("job"))
		wantIs(t, err, holdfast.ErrUnavailable)
		if !contains(err, "WRONGTYPE") {
			t.Errorf("got %v, want the reason", err)
		}
		synctest.Wait()
		if b.Redis.Exists("k") {
			t.Errorf("a lock that nobody has, for %v", b.Redis.TTL("k"))
		}
		if got, _ := b.Redis.Get(heldKey); got != "somebody's" {
			t.Errorf("what was there is now %q", got)
		}
		release(t, acquire(t, r.Locker, "k"))
		shutdown(t, r.Locker)
	})
}

// Calls of one id that stand in line next to each other get the lock together, by the message of their grants. One behind
// another waiter finds out with its next look.
func TestReentryIDInLine(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		id := holdfast.WithReentryID("job 7 % \n")
		var rs []*replica
		for range 6 {
			rs = append(rs, newReplica(t, b))
		}
		for _, r := range rs[1:] {
			openInbox(t, b, r)
		}
		lock := acquire(t, rs[0].Locker, "k")
		var calls []<-chan result
		for i, opts := range [][]holdfast.CallOption{{id}, {id}, nil, {id}, {holdfast.WithReentryID("job 7")}} {
			calls = append(calls, call(background, rs[i+1], "k", opts...))
			time.Sleep(10 * time.Millisecond)
		}
		b.ResetCommands()
		release(t, lock)
		synctest.Wait()
		one, two := got(t, calls[0]), got(t, calls[1])
		if n := b.Commands()["acquire"]; n > 1 || one.Token() != two.Token() {
			t.Errorf("%d looks, tokens %d and %d", n, one.Token(), two.Token())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		three := got(t, calls[3])
		if state, err := rs[0].Inspect(background, "k"); err != nil || state.Holders != 3 || state.Limit != 1 || state.Token != three.Token() || state.Waiting != 2 {
			t.Errorf("%+v, %v", state, err)
		}
		for _, lk := range []*holdfast.Lock{one, three, two} {
			notYet(t, calls[2])
			release(t, lk)
			synctest.Wait()
		}
		alone := got(t, calls[2])
		notYet(t, calls[4])
		release(t, alone)
		release(t, got(t, calls[4]))
		empty(t, b, rs...)
	})
}

// A re-entry id and limits do not mix: a call that names one of them waits for all that name another.
func TestReentryIDBesideLimits(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		ways := []holdfast.CallOption{
			holdfast.WithReentryID("job"), holdfast.WithReentryID("=job"), holdfast.WithLimit(2), holdfast.WithShared(), holdfast.WithLimit(1),
		}
		for i, way := range ways {
			lock := acquire(t, r.Locker, "k", way, holdfast.WithLabel("job"))
			var held *holdfast.HeldError
			for j, way := range ways {
				if i == j {
					continue
				}
				_, err := other.TryAcquire(background, "k", way)
				if !errors.As(err, &held) || held.Holders != 1 || (held.Label == "") != (i == 2 || i == 3) {
					t.Errorf("%d while it is held by %d: %v", j, i, err)
				}
			}
			release(t, lock)
		}
		shutdown(t, other.Locker)
	})
}

// If the hash becomes of another type while the lock is held, nobody knows its holders: they have lost it, and it is free when the
// lease is over.
func TestReentryIDWhereTheHashBecomesOfAnotherType(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k", holdfast.WithReentryID("job"))
		b.Redis.Del(heldKey)
		b.Redis.Set(heldKey, "somebody's")
		wantIs(t, lock.Release(background), holdfast.ErrLost)
		_, err := r.TryAcquire(background, "k", holdfast.WithReentryID("job"))
		wantIs(t, err, holdfast.ErrNotAcquired)
		time.Sleep(b.Redis.TTL("k"))
		release(t, acquire(t, r.Locker, "k"))
		if got, _ := b.Redis.Get(heldKey); got != "somebody's" {
			t.Errorf("what was there is now %q", got)
		}
		shutdown(t, r.Locker)
	})
}

// Calls of one id that overlap for ever do not keep a waiter out: it waits for the first holder, and for those that are
// in when that one leaves. Calls that then stand in line before it have their turn before it.
func TestReentryIDLeavesAWaiterItsTurn(t *testing.T) {
	const hold, slack, n = 60 * time.Millisecond, 10 * time.Millisecond, 6
	for arrival := 10 * hold; arrival < 11*hold; arrival += 13 * time.Millisecond {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			id := holdfast.WithReentryID("job-7")
			stranger := newReplica(t, b)
			rs := []*replica{stranger}
			openInbox(t, b, stranger)
			ctx, stop := context.WithCancel(background)
			var callers sync.WaitGroup
			var entered [n]atomic.Int64
			for i := range n {
				r := newReplica(t, b)
				rs = append(rs, r)
				callers.Go(func() {
					time.Sleep(time.Duration(i) * hold / n)
					for ctx.Err() == nil {
						lock, err := r.Acquire(ctx, "k", id)
						if err != nil {
							return
						}
						entered[i].Add(1)
						time.Sleep(hold)
						if err := lock.Release(background); err != nil {
							t.Error(err)
						}
					}
				})
			}
			time.Sleep(arrival)
			for i := range entered {
				if got := entered[i].Load(); got < 9 {
					t.Errorf("caller %d got in %d times in %v", i, got, arrival)
				}
			}
			for round := range 4 {
				most := 2 * hold
				if round > 0 {
					most *= n
				}
				began := time.Now()
				lock := obtain(t, stranger.Locker, "k", holdfast.WithWait(time.Minute))
				if took := time.Since(began); took > most+slack {
					t.Errorf("a waiter that came after %v, round %d: it waited %v, want at most %v", arrival, round, took, most)
				}
				release(t, lock)
				time.Sleep(hold / 2)
			}
			stop()
			callers.Wait()
			empty(t, b, rs...)
		})
	}
}

// As long as the first holder is in, the others enter whoever waits, so that a job may wait for those that it calls.
// After that they wait behind a waiter, and enter if it is gone.
func TestReentryIDWhileTheFirstHolderIsIn(t *testing.T) {
	for _, how := range []string{"it releases", "it dies"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				id := holdfast.WithReentryID("job-7")
				job, service, other, stranger := newReplica(t, b), newReplica(t, b), newReplica(t, b), newReplica(t, b)
				first := acquire(t, job.Locker, "k", id)
				ctx, cancel := context.WithCancel(background)
				behind := call(ctx, stranger, "k")
				for range 3 {
					time.Sleep(2 * time.Minute)
					release(t, acquire(t, service.Locker, "k", id))
				}
				second := acquire(t, service.Locker, "k", id)
				if how == "it dies" {
					job.link.CutUp()
					time.Sleep(20 * time.Second)
					wantIs(t, first.Err(), holdfast.ErrLost)
				} else {
					release(t, first)
				}
				_, err := other.TryAcquire(background, "k", id)
				wantIs(t, err, holdfast.ErrNotAcquired)
				third := call(background, other, "k", id)
				time.Sleep(20 * time.Second)
				notYet(t, third)
				notYet(t, behind)
				if err := second.Err(); err != nil {
					t.Fatal(err)
				}
				cancel()
				<-behind
				time.Sleep(3 * time.Second)
				lock := got(t, third)
				if lock.Token() != second.Token() {
					t.Errorf("tokens %d and %d", lock.Token(), second.Token())
				}
				release(t, second)
				if err := lock.Extend(background, time.Minute); err != nil {
					t.Error(err)
				}
				release(t, lock)
				job.link.Heal()
				if how == "it dies" {
					wantIs(t, first.Release(background), holdfast.ErrLost)
				}
				empty(t, b, job, service, other, stranger)
			})
		})
	}
}

// A waiter that has died keeps nobody out for longer than its place in line is kept.
func TestReentryIDBehindADeadWaiter(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		id := holdfast.WithReentryID("job-7")
		one, two, three, stranger := newReplica(t, b), newReplica(t, b), newReplica(t, b), newReplica(t, b)
		first, second := acquire(t, one.Locker, "k", id), acquire(t, two.Locker, "k", id)
		ctx, cancel := context.WithCancel(background)
		behind := call(ctx, stranger, "k")
		stranger.link.CutUp()
		release(t, first)
		third := call(background, three, "k", id)
		notYet(t, third)
		time.Sleep(8 * time.Second)
		lock := got(t, third)
		release(t, second)
		release(t, lock)
		cancel()
		<-behind
		stranger.link.Heal()
		empty(t, b, one, two, three, stranger)
	})
}

// What acquire.lua answers while somebody waits and the first holder has left, on miniredis and on a real server.
func TestReentryIDScripts(t *testing.T) {
	test := func(t *testing.T, rdb *redis.Client) {
		now := rdb.Time(background).Val().UnixMilli()
		for _, c := range []struct {
			name        string
			first       int64 // until when the first holder is in, from now on in ms
			owner       string
			line        []string
			want        string // the reply
			placed      bool   // in line
			left        []string
			anotherType bool
		}{
			{name: "nobody waits", owner: "new", want: "70"},
			{name: "somebody waits", owner: "new", line: []string{"w"}, want: "refused", left: []string{"w"}},
			{name: "somebody waits, and it waits too", owner: "new", line: []string{"w"}, want: "refused", placed: true, left: []string{"w", "new"}},
			{name: "the first holder is in", first: 9000, owner: "new", line: []string{"w"}, want: "70", left: []string{"w"}},
			{name: "the first holder is dead", first: -1, owner: "new", line: []string{"w"}, want: "refused", left: []string{"w"}},
			{name: "sent again", owner: "in", line: []string{"w"}, want: "70", left: []string{"w"}},
			{name: "sent again after its lease", owner: "out", line: []string{"w"}, want: "refused", left: []string{"w"}},
			{name: "first in line", owner: "new", line: []string{"new", "w"}, want: "70", left: []string{"w"}},
			{name: "behind the dead", owner: "new", line: []string{"dead", "gone", "new", "w"}, want: "70", left: []string{"w"}},
			{name: "behind a place that is damaged", owner: "new", line: []string{"odd", "long"}, want: "70"},
			{name: "a line of another type", owner: "new", anotherType: true, want: "WRONGTYPE"},
		} {
			rdb.FlushDB(background)
			rdb.Set(background, "k", "=first", 20*time.Second)
			rdb.Set(background, fenceKey, "70 70 70 s w", time.Minute)
			in := func(ends int64) string { return fmt.Sprint(ends, " 1 0") }
			rdb.HSet(background, heldKey, "of", "=first", "cap", fmt.Sprint("1=job 2 ", now-1, " 70"), "@in", in(now+20000), "@out", in(now-1))
			if c.first != 0 {
				rdb.HSet(background, heldKey, "@first", in(now+c.first))
			}
			arrival := func(w string) string { return fmt.Sprintf("%016d", 1+slices.Index(c.line, w)) }
			for _, w := range c.line {
				rdb.ZAdd(background, lineKey, redis.Z{Member: " " + arrival(w) + w})
			}
			for w, expiry := range map[string]string{"w": fmt.Sprint(now + 5000), "new": fmt.Sprint(now + 5000), "in": fmt.Sprint(now + 5000),
				"dead": fmt.Sprint(now - 1), "odd": "", "long": "99999999999999999"} {
				if slices.Contains(c.line, w) {
					rdb.HSet(background, waitKey, w, expiry+" "+arrival(w)+" 3000 63000 1 1 1: 0 -")
				}
			}
			if c.anotherType {
				rdb.Set(background, lineKey, "x", 0)
			}
			plan := "5000 65000 1"
			if c.placed {
				plan += " 5000 3000 1: 0 -"
			}
			val, err := holdfast.PermitScript.Run(background, rdb, "k", fenceKey, goneKey, lineKey, waitKey, heldKey, c.owner, plan, "1=job")
			reply := fmt.Sprint(val)
			if _, refused := val.([]any); refused {
				reply = "refused"
			}
			if err != nil {
				reply = err.Error()
			}
			if !strings.Contains(reply, c.want) {
				t.Errorf("%s: got %s, want %s", c.name, reply, c.want)
			}
			if got := lineOf(rdb); !c.anotherType && !slices.Equal(got, c.left) {
				t.Errorf("%s: in line are %q, want %q", c.name, got, c.left)
			}
			if in := rdb.HExists(background, heldKey, "@new").Val(); in != (c.owner == "new" && c.want == "70") {
				t.Errorf("%s: new is in: %v", c.name, in)
			}
		}
	}
	t.Run("miniredis", func(t *testing.T) {
		bubble(t, func(t *testing.T, b *servertest.Bubble) { test(t, b.Client()) })
	})
	t.Run("server", func(t *testing.T) { test(t, servertest.Redis(t).Client()) })
}
