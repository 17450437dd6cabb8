package holdfast_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

var shared = holdfast.WithShared()

// read takes a shared lock of k.
func read(t *testing.T, r *replica, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	return acquire(t, r.Locker, "k", append(opts, shared)...)
}

// Readers of one process cost one acquisition: those that come together, and later ones for a while.
func TestReadersShareATenure(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		release(t, acquire(t, r.Locker, "warm", shared))
		b.ResetCommands()
		r.link.CutUp()
		var calls []<-chan result
		for range 60 { // one asks, the others wait for it
			calls = append(calls, call(background, r, "k", shared))
		}
		r.link.Heal()
		var locks []*holdfast.Lock
		for _, c := range calls {
			locks = append(locks, got(t, c))
		}
		time.Sleep(50 * time.Millisecond)
		for range 4 {
			locks = append(locks, read(t, r))
		}
		sent(t, b, 1)
		for _, lk := range locks {
			if lk.Err() != nil || lk.Token() != locks[0].Token() || lk.Limit() != 0 {
				t.Fatalf("token %d, limit %d, %v", lk.Token(), lk.Limit(), lk.Err())
			}
		}
		writer := call(background, other, "k")
		for i, lk := range locks {
			notYet(t, writer)
			ctx := lk.Context(background)
			release(t, lk)
			if ctx.Err() == nil || lk.Err() == nil || i < 63 && locks[i+1].Err() != nil {
				t.Fatal("one that was released is held, or another one is not")
			}
		}
		lk := got(t, writer)
		rises(t, locks[0], lk)
		release(t, lk)
	})
}

// Readers of one process that come and go do not keep a writer of another out.
func TestReadersLetAWriterIn(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		ctx, stop := context.WithCancel(background)
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 3 * time.Millisecond)
				for ctx.Err() == nil {
					lk, err := r.Acquire(ctx, "k", shared)
					if err != nil {
						continue
					}
					time.Sleep(20 * time.Millisecond)
					release(t, lk)
				}
			})
		}
		for range 10 {
			time.Sleep(time.Second)
			began := time.Now()
			lk := got(t, call(background, other, "k"))
			// No longer than a tenure can be joined, and its last reader reads.
			atMost(t, began, 125*time.Millisecond)
			release(t, lk)
		}
		stop()
		readers.Wait()
	})
}

// A call joins a tenure that is what it asks for, and young.
func TestReadersThatDoNotShare(t *testing.T) {
	type opts = []holdfast.CallOption
	for name, c := range map[string]struct {
		wait  time.Duration
		first opts
		next  opts
		new   []holdfast.Option
		joins bool
		alone bool // the first has left by then, and another kind of reader is there
	}{
		"the same":                {joins: true},
		"a trace and a bound":     {next: opts{holdfast.WithTrace(&holdfast.Trace{}), holdfast.WithMaxHold(time.Minute), passing}, joins: true},
		"later":                   {wait: 99 * time.Millisecond, joins: true},
		"too late":                {wait: 100 * time.Millisecond},
		"another TTL":             {next: opts{holdfast.WithTTL(time.Second)}},
		"another label":           {next: opts{holdfast.WithLabel("b")}},
		"not renewed":             {next: opts{holdfast.WithoutRenewal()}},
		"a short lease":           {first: opts{holdfast.WithTTL(100 * time.Millisecond)}, next: opts{holdfast.WithTTL(100 * time.Millisecond)}, wait: 45 * time.Millisecond},
		"turned off":              {new: []holdfast.Option{holdfast.WithLocalHandover(0, 0)}},
		"bounded":                 {new: []holdfast.Option{holdfast.WithLocalHandover(1, 10*time.Millisecond)}, wait: 10 * time.Millisecond},
		"after the last has left": {alone: true},
		"a limit":                 {next: opts{holdfast.WithLimit(1000)}},
	} {
		t.Run(name, func(t *testing.T) {
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				release(t, acquire(t, r.Locker, "warm", shared))
				if c.alone {
					defer release(t, read(t, r, holdfast.WithLabel("other")))
				}
				one := read(t, r, c.first...)
				time.Sleep(c.wait)
				if c.alone {
					release(t, one)
				} else {
					defer release(t, one)
				}
				b.ResetCommands()
				two, err := r.TryAcquire(background, "k", append(opts{shared}, c.next...)...)
				if joined := b.Commands().Total() == 0; joined != c.joins {
					t.Errorf("joined: %v, after %v", joined, b.Commands())
				}
				if err == nil {
					if two.Token() == one.Token() != c.joins {
						t.Errorf("tokens %d and %d", one.Token(), two.Token())
					}
					release(t, two)
				}
			}, c.new...)
		})
	}
}

// A tenure that Redis has lost is lost for all that share it.
func TestReadersLoseTogether(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		var locks []*holdfast.Lock
		var contexts []context.Context
		for range 5 {
			lk := read(t, r)
			locks, contexts = append(locks, lk), append(contexts, lk.Context(background))
		}
		b.Redis.Del("k")
		wantIs(t, locks[2].Extend(background, time.Minute), holdfast.ErrLost)
		for i, lk := range locks {
			wantIs(t, lk.Err(), holdfast.ErrLost)
			wantIs(t, context.Cause(contexts[i]), holdfast.ErrLost)
		}
		next := read(t, r) // nobody joins it any more
		rises(t, locks[0], next)
		for _, lk := range locks {
			wantIs(t, lk.Release(background), holdfast.ErrLost)
		}
		fine(t, next.Err())
		release(t, next)
	}, holdfast.WithTTL(9*time.Second))
}

// They are renewed by one command, and each lasts as long as it wants.
func TestReadersAreRenewedTogether(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		var locks []*holdfast.Lock
		for range 10 {
			locks = append(locks, read(t, r))
		}
		bounded := read(t, r, holdfast.WithMaxHold(20*time.Second))
		time.Sleep(4 * time.Second) // the first sends the script
		b.ResetCommands()
		time.Sleep(27 * time.Second)
		sent(t, b, 9) // one every third of a lease
		wantIs(t, bounded.Err(), holdfast.ErrLost)
		for _, lk := range locks {
			fine(t, lk.Err())
			release(t, lk)
		}
		// What has not noticed may still run: the lease runs out, or its Release comes.
		if left := b.Redis.TTL("k"); left <= 0 {
			t.Error("released beside one that has not")
		}
		wantIs(t, bounded.Release(background), holdfast.ErrLost)
		synctest.Wait()
		unheld(t, b, "k")
	}, holdfast.WithTTL(9*time.Second))
}

// One that was forgotten does not hold the lock for ever, and takes it from nobody.
func TestReaderThatWasForgotten(t *testing.T) {
	for _, last := range []bool{false, true} {
		duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
			openInbox(t, b, r)
			before := acquire(t, other.Locker, "k")
			waits := call(background, r, "k", shared)
			release(t, before)
			_ = got(t, waits)
			kept := read(t, r)
			writer := call(background, other, "k")
			began := time.Now()
			if last {
				release(t, kept)
			}
			for range 10 {
				time.Sleep(3 * time.Second)
				runtime.GC()
			}
			if !last {
				if kept.Err() != nil {
					t.Fatal(kept.Err())
				}
				notYet(t, writer)
				if n := holdfast.Scheduled(r.Locker); n != 1 {
					t.Errorf("%d are renewed", n)
				}
				began = time.Now()
				release(t, kept)
			}
			res := <-writer
			if d := res.at.Sub(began); d < time.Second || d > 21*time.Second {
				t.Errorf("the writer came after %v, want the rest of the lease", d)
			}
			release(t, res.lock)
		}, holdfast.WithTTL(9*time.Second))
	}
}

// Where the one that asks Redis gives up, the next goes on with its place in line.
func TestReadersBehindOneThatGivesUp(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		openInbox(t, b, r)
		writer := acquire(t, other.Locker, "k")
		ctx, cancel := context.WithCancel(background)
		first := call(ctx, r, "k", shared)
		second := call(background, r, "k", shared)
		third := call(background, r, "k", shared, holdfast.WithWait(time.Second))
		late := call(background, other, "k")
		_, err := r.TryAcquire(background, "k", shared)
		if held := refused(t, err); held.Holders != 1 || held.Here {
			t.Errorf("a try beside those that wait: %v", err)
		}
		inspects(t, r, func(s holdfast.State) bool { return s.WaitingHere == 3 && s.Waiting == 1 && !s.Here })
		cancel()
		wantIs(t, (<-first).err, context.Canceled)
		time.Sleep(2 * time.Second)
		refused(t, (<-third).err)
		release(t, writer)
		lk := got(t, second)
		notYet(t, late)
		inspects(t, r, func(s holdfast.State) bool { return s.WaitingHere == 0 && s.Here })
		release(t, lk)
		release(t, got(t, late))
	})
}

// inspects checks what Inspect tells of k.
func inspects(t *testing.T, r *replica, ok func(holdfast.State) bool) {
	t.Helper()
	if s, err := r.Inspect(background, "k"); err != nil || !ok(s) {
		t.Errorf("%+v, %v", s, err)
	}
}

// One that has left leaves room for others, and one whose context has ended, or whose tenure is lost as it joins, takes the lock
// from nobody.
func TestReadersThatComeAndGo(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		one, two := read(t, r), read(t, r)
		release(t, one)
		b.ResetCommands()
		one = read(t, r)
		_, err := r.Acquire(ended, "k", shared)
		wantIs(t, err, context.Canceled)
		synctest.Wait()
		sent(t, b, 0)
		inspects(t, r, func(s holdfast.State) bool { return s.Held && s.Here && s.WaitingHere == 0 })
		meanwhile := &whenAsked{Context: background, n: 1, f: func() {
			b.Redis.Del("k")
			wantIs(t, two.Extend(background, time.Minute), holdfast.ErrLost)
			four := read(t, r) // of a tenure of its own, though one is about to join the lost one
			fine(t, four.Err())
			rises(t, two, four)
			release(t, four)
		}}
		three, err := r.Acquire(meanwhile, "k", shared)
		must(t, err)
		for _, lk := range []*holdfast.Lock{one, two, three} {
			wantIs(t, lk.Err(), holdfast.ErrLost)
			wantIs(t, lk.Release(background), holdfast.ErrLost)
		}
	})
}

// A message of a grant that was known already, and comes once one of those that share it has lost the lock, undoes nothing.
func TestReadersAndALateMessage(t *testing.T) {
	duo(t, func(t *testing.T, b *servertest.Bubble, r, other *replica) {
		openInbox(t, b, r)
		spy := other.rdb.PSubscribe(background, "holdfast:inbox:*")
		defer spy.Close()
		writer := acquire(t, other.Locker, "k")
		reader := call(background, r, "k", shared, holdfast.WithMaxHold(2*time.Second))
		release(t, writer)
		one := got(t, reader)
		message, err := spy.ReceiveMessage(background)
		for err == nil && !strings.Contains(message.Payload, holdfast.Owner(one)) {
			message, err = spy.ReceiveMessage(background)
		}
		must(t, err)
		two := read(t, r)
		time.Sleep(3 * time.Second)
		wantIs(t, one.Err(), holdfast.ErrLost)
		if n := other.rdb.Publish(background, message.Channel, message.Payload).Val(); n == 0 {
			t.Error("nobody listens")
		}
		time.Sleep(time.Second)
		fine(t, two.Extend(background, 2*time.Second))
		wantIs(t, one.Release(background), holdfast.ErrLost)
		release(t, two)
	}, holdfast.WithTTL(2*time.Second))
}

// A lease that one of them had extended is released, or runs out, like the others.
func TestReaderExtendsForAll(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		one, two := read(t, r), read(t, r)
		must(t, one.Extend(background, time.Minute))
		release(t, one)
		if left := b.Redis.TTL("k"); left < time.Minute-time.Second {
			t.Errorf("%v are left", left)
		}
		// Releases get lost for longer than a TTL.
		lost := func([]string) servertest.Verdict { return servertest.LoseRequestAndClose }
		r.link.OnCommand(lost)
		wantIs(t, two.Release(background), holdfast.ErrUnavailable)
		time.Sleep(10 * time.Second)
		r.link.OnCommand(nil)
		time.Sleep(10 * time.Second)
		unheld(t, b, "k")
	}, holdfast.WithTTL(3*time.Second))
}

// Shutdown waits for readers, and gives up all that share a tenure.
func TestReadersAtShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		openInbox(t, b, r)
		writer := acquire(t, other.Locker, "w")
		var waits []<-chan result
		for _, o := range []holdfast.CallOption{shared, holdfast.WithLimit(1), holdfast.WithLimit(2)} {
			for range 3 {
				waits = append(waits, call(background, r, "w", o))
			}
		}
		one, two := read(t, r), read(t, r)
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		wantIs(t, r.Shutdown(ctx), context.DeadlineExceeded)
		for _, c := range waits {
			wantIs(t, (<-c).err, holdfast.ErrClosed)
		}
		for _, lk := range []*holdfast.Lock{one, two} {
			if wantIs(t, lk.Err(), holdfast.ErrClosed); !b.Redis.Exists("k") {
				t.Error("it was freed under a reader")
			}
			wantIs(t, lk.Release(background), holdfast.ErrClosed)
		}
		unheld(t, b, "k")
		release(t, writer)
		empty(t, b, other)
	})
}
