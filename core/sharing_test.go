package holdfast_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Readers of one process cost one acquisition: those that come together, and later ones for a while.
func TestReadersShareATenure(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		release(t, acquire(t, r.Locker, "warm", holdfast.WithShared()))
		b.ResetCommands()
		r.link.CutUp()
		locks := make([]*holdfast.Lock, 64)
		var all sync.WaitGroup
		for i := range locks[:60] {
			all.Go(func() { locks[i] = obtain(t, r.Locker, "k", holdfast.WithShared()) })
		}
		synctest.Wait() // one asks, the others wait for it
		r.link.Heal()
		all.Wait()
		time.Sleep(50 * time.Millisecond)
		for i := 60; i < 64; i++ {
			locks[i] = acquire(t, r.Locker, "k", holdfast.WithShared())
		}
		if n := b.Commands().Total(); n != 1 {
			t.Errorf("%d commands for 64 readers: %v", n, b.Commands())
		}
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
			if ctx.Err() == nil || lk.Err() == nil {
				t.Error("it is held after its release")
			}
			if i < 63 && locks[i+1].Err() != nil {
				t.Fatal(locks[i+1].Err())
			}
		}
		lk := got(t, writer)
		if lk.Token() <= locks[0].Token() {
			t.Errorf("token %d after %d", lk.Token(), locks[0].Token())
		}
		release(t, lk)
		empty(t, b, r, other)
	})
}

// Readers of one process that come and go do not keep a writer of another out.
func TestReadersLetAWriterIn(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		ctx, stop := context.WithCancel(background)
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 3 * time.Millisecond)
				for ctx.Err() == nil {
					lk, err := r.Acquire(ctx, "k", holdfast.WithShared())
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
			lk := obtain(t, other.Locker, "k")
			// No longer than a tenure can be joined, and its last reader reads.
			if d := time.Since(began); d > 125*time.Millisecond {
				t.Errorf("the writer waited for %v", d)
			}
			release(t, lk)
		}
		stop()
		readers.Wait()
		empty(t, b, r, other)
	})
}

// A call joins a tenure that is what it asks for, and young.
func TestReadersThatDoNotShare(t *testing.T) {
	for _, c := range []struct {
		name  string
		wait  time.Duration
		first []holdfast.CallOption
		next  []holdfast.CallOption
		new   []holdfast.Option
		joins bool
		alone bool // the first has left by then, and another kind of reader is there
	}{
		{name: "the same", joins: true},
		{name: "a trace and a bound", next: []holdfast.CallOption{holdfast.WithTrace(&holdfast.Trace{}), holdfast.WithMaxHold(time.Minute), holdfast.WithReleaseInBackground()}, joins: true},
		{name: "later", wait: 99 * time.Millisecond, joins: true},
		{name: "too late", wait: 100 * time.Millisecond},
		{name: "another TTL", next: []holdfast.CallOption{holdfast.WithTTL(time.Second)}},
		{name: "another label", next: []holdfast.CallOption{holdfast.WithLabel("b")}},
		{name: "not renewed", next: []holdfast.CallOption{holdfast.WithoutRenewal()}},
		{name: "a short lease", first: []holdfast.CallOption{holdfast.WithTTL(100 * time.Millisecond)}, next: []holdfast.CallOption{holdfast.WithTTL(100 * time.Millisecond)}, wait: 45 * time.Millisecond},
		{name: "turned off", new: []holdfast.Option{holdfast.WithLocalHandover(0, 0)}},
		{name: "bounded", new: []holdfast.Option{holdfast.WithLocalHandover(1, 10*time.Millisecond)}, wait: 10 * time.Millisecond},
		{name: "after the last has left", alone: true},
		{name: "a limit", next: []holdfast.CallOption{holdfast.WithLimit(1000)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newReplica(t, b, c.new...)
				release(t, acquire(t, r.Locker, "warm", holdfast.WithShared()))
				if c.alone {
					defer func(lk *holdfast.Lock) { release(t, lk); empty(t, b, r) }(acquire(t, r.Locker, "k", holdfast.WithShared(), holdfast.WithLabel("other")))
				}
				one := acquire(t, r.Locker, "k", append(c.first, holdfast.WithShared())...)
				time.Sleep(c.wait)
				if c.alone {
					release(t, one)
				}
				b.ResetCommands()
				two, err := r.TryAcquire(background, "k", append([]holdfast.CallOption{holdfast.WithShared()}, c.next...)...)
				if joined := b.Commands().Total() == 0; joined != c.joins {
					t.Errorf("joined: %v, after %v", joined, b.Commands())
				}
				if err == nil {
					if two.Token() == one.Token() != c.joins {
						t.Errorf("tokens %d and %d", one.Token(), two.Token())
					}
					release(t, two)
				}
				if !c.alone {
					release(t, one)
					empty(t, b, r)
				}
			})
		})
	}
}

// A tenure that Redis has lost is lost for all that share it.
func TestReadersLoseTogether(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(9*time.Second))
		var locks []*holdfast.Lock
		var contexts []context.Context
		for range 5 {
			lk := acquire(t, r.Locker, "k", holdfast.WithShared())
			locks, contexts = append(locks, lk), append(contexts, lk.Context(background))
		}
		b.Redis.Del("k")
		if err := locks[2].Extend(background, time.Minute); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("extended: %v", err)
		}
		for i, lk := range locks {
			if !errors.Is(lk.Err(), holdfast.ErrLost) || !errors.Is(context.Cause(contexts[i]), holdfast.ErrLost) {
				t.Errorf("%d: %v, %v", i, lk.Err(), context.Cause(contexts[i]))
			}
		}
		// Nobody joins it any more.
		b.ResetCommands()
		next := acquire(t, r.Locker, "k", holdfast.WithShared())
		if b.Commands().Total() == 0 || next.Token() <= locks[0].Token() {
			t.Errorf("token %d after %d: %v", next.Token(), locks[0].Token(), b.Commands())
		}
		for _, lk := range locks {
			if err := lk.Release(background); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("released: %v", err)
			}
		}
		if next.Err() != nil {
			t.Error(next.Err())
		}
		release(t, next)
		empty(t, b, r)
	})
}

// They are renewed by one command, and each lasts as long as it wants.
func TestReadersAreRenewedTogether(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(9*time.Second))
		var locks []*holdfast.Lock
		for range 10 {
			locks = append(locks, acquire(t, r.Locker, "k", holdfast.WithShared()))
		}
		bounded := acquire(t, r.Locker, "k", holdfast.WithShared(), holdfast.WithMaxHold(20*time.Second))
		time.Sleep(4 * time.Second) // the first sends the script
		b.ResetCommands()
		time.Sleep(27 * time.Second)
		if n := b.Commands().Total(); n != 9 {
			t.Errorf("%d commands in 27 s, want one every third of a lease", n)
		}
		if !errors.Is(bounded.Err(), holdfast.ErrLost) {
			t.Errorf("held beyond its bound: %v", bounded.Err())
		}
		for _, lk := range locks {
			if lk.Err() != nil {
				t.Error(lk.Err())
			}
			release(t, lk)
		}
		// What has not noticed may still run: the lease runs out, or its Release comes.
		if left := b.Redis.TTL("k"); left <= 0 {
			t.Error("released beside one that has not")
		}
		if err := bounded.Release(background); !errors.Is(err, holdfast.ErrLost) {
			t.Error(err)
		}
		synctest.Wait()
		if b.Redis.Exists("k") {
			t.Error("the last one has not released it")
		}
		empty(t, b, r)
	})
}

// One that was forgotten does not hold the lock for ever, and takes it from nobody.
func TestReaderThatWasForgotten(t *testing.T) {
	for _, last := range []bool{false, true} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r, other := newReplica(t, b, holdfast.WithTTL(9*time.Second)), newReplica(t, b)
			openInbox(t, b, r)
			before := acquire(t, other.Locker, "k")
			waits := call(background, r, "k", holdfast.WithShared())
			release(t, before)
			_ = got(t, waits)
			kept := acquire(t, r.Locker, "k", holdfast.WithShared())
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
			empty(t, b, r, other)
		})
	}
}

// Where the one that asks Redis gives up, the next goes on with its place in line.
func TestReadersBehindOneThatGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		openInbox(t, b, r)
		writer := acquire(t, other.Locker, "k")
		ctx, cancel := context.WithCancel(background)
		first := call(ctx, r, "k", holdfast.WithShared())
		second := call(background, r, "k", holdfast.WithShared())
		third := call(background, r, "k", holdfast.WithShared(), holdfast.WithWait(time.Second))
		late := call(background, other, "k")
		var held *holdfast.HeldError
		if _, err := r.TryAcquire(background, "k", holdfast.WithShared()); !errors.As(err, &held) || held.Holders != 1 || held.Here {
			t.Errorf("a try beside those that wait: %v", err)
		}
		if state, err := r.Inspect(background, "k"); err != nil || state.WaitingHere != 3 || state.Waiting != 1 || state.Here {
			t.Errorf("%+v, %v", state, err)
		}
		cancel()
		if res := <-first; !errors.Is(res.err, context.Canceled) {
			t.Error(res.err)
		}
		time.Sleep(2 * time.Second)
		if res := <-third; !errors.As(res.err, &held) {
			t.Error(res.err)
		}
		release(t, writer)
		lk := got(t, second)
		notYet(t, late)
		if state, err := r.Inspect(background, "k"); err != nil || state.WaitingHere != 0 || !state.Here {
			t.Errorf("%+v, %v", state, err)
		}
		release(t, lk)
		release(t, got(t, late))
		empty(t, b, r, other)
	})
}

// One that has left leaves room for others, and one whose context has ended, or whose tenure is lost as it joins, takes the lock
// from nobody.
func TestReadersThatComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		one, two := acquire(t, r.Locker, "k", holdfast.WithShared()), acquire(t, r.Locker, "k", holdfast.WithShared())
		release(t, one)
		b.ResetCommands()
		one = acquire(t, r.Locker, "k", holdfast.WithShared())
		ended, cancel := context.WithCancel(background)
		cancel()
		if _, err := r.Acquire(ended, "k", holdfast.WithShared()); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands", n)
		}
		if state, err := r.Inspect(background, "k"); err != nil || !state.Held || !state.Here || state.WaitingHere != 0 {
			t.Errorf("%+v, %v", state, err)
		}
		meanwhile := &whenAsked{Context: background, n: 1, f: func() {
			b.Redis.Del("k")
			wantIs(t, two.Extend(background, time.Minute), holdfast.ErrLost)
			four := acquire(t, r.Locker, "k", holdfast.WithShared()) // of a tenure of its own, though one is about to join the lost one
			if four.Err() != nil || four.Token() <= two.Token() {
				t.Errorf("token %d after %d: %v", four.Token(), two.Token(), four.Err())
			}
			release(t, four)
		}}
		three, err := r.Acquire(meanwhile, "k", holdfast.WithShared())
		if err != nil {
			t.Fatal(err)
		}
		for _, lk := range []*holdfast.Lock{one, two, three} {
			wantIs(t, lk.Err(), holdfast.ErrLost)
			wantIs(t, lk.Release(background), holdfast.ErrLost)
		}
		empty(t, b, r)
	})
}

// A message of a grant that was known already, and comes once one of those that share it has lost the lock, undoes nothing.
func TestReadersAndALateMessage(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b, holdfast.WithTTL(2*time.Second)), newReplica(t, b)
		openInbox(t, b, r)
		spy := other.rdb.PSubscribe(background, "holdfast:inbox:*")
		defer spy.Close()
		writer := acquire(t, other.Locker, "k")
		reader := call(background, r, "k", holdfast.WithShared(), holdfast.WithMaxHold(2*time.Second))
		release(t, writer)
		one := got(t, reader)
		message, err := spy.ReceiveMessage(background)
		for err == nil && !strings.Contains(message.Payload, holdfast.Owner(one)) {
			message, err = spy.ReceiveMessage(background)
		}
		if err != nil {
			t.Fatal(err)
		}
		two := acquire(t, r.Locker, "k", holdfast.WithShared())
		time.Sleep(3 * time.Second)
		wantIs(t, one.Err(), holdfast.ErrLost)
		if n := other.rdb.Publish(background, message.Channel, message.Payload).Val(); n == 0 {
			t.Error("nobody listens")
		}
		time.Sleep(time.Second)
		if err := two.Extend(background, 2*time.Second); err != nil {
			t.Error(err)
		}
		wantIs(t, one.Release(background), holdfast.ErrLost)
		release(t, two)
		empty(t, b, r, other)
	})
}

// A lease that one of them had extended is released, or runs out, like the others.
func TestReaderExtendsForAll(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second))
		one, two := acquire(t, r.Locker, "k", holdfast.WithShared()), acquire(t, r.Locker, "k", holdfast.WithShared())
		if err := one.Extend(background, time.Minute); err != nil {
			t.Fatal(err)
		}
		release(t, one)
		if left := b.Redis.TTL("k"); left < time.Minute-time.Second {
			t.Errorf("%v are left", left)
		}
		// Releases get lost for longer than a TTL.
		lost := func([]string) servertest.Verdict { return servertest.LoseRequestAndClose }
		r.link.OnCommand(lost)
		if err := two.Release(background); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		r.link.OnCommand(nil)
		time.Sleep(10 * time.Second)
		if b.Redis.Exists("k") {
			t.Error("the lock is left to the long lease")
		}
		empty(t, b, r)
	})
}

// Shutdown waits for readers, and gives up all that share a tenure.
func TestReadersAtShutdown(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		openInbox(t, b, r)
		writer := acquire(t, other.Locker, "w")
		var waits []<-chan result
		for _, o := range []holdfast.CallOption{holdfast.WithShared(), holdfast.WithLimit(1), holdfast.WithLimit(2)} {
			for range 3 {
				waits = append(waits, call(background, r, "w", o))
			}
		}
		one, two := acquire(t, r.Locker, "k", holdfast.WithShared()), acquire(t, r.Locker, "k", holdfast.WithShared())
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if err := r.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		for _, c := range waits {
			if res := <-c; !errors.Is(res.err, holdfast.ErrClosed) {
				t.Error(res.err)
			}
		}
		for _, lk := range []*holdfast.Lock{one, two} {
			if !errors.Is(lk.Err(), holdfast.ErrClosed) || !b.Redis.Exists("k") {
				t.Errorf("%v, there: %v", lk.Err(), b.Redis.Exists("k"))
			}
			release(t, lk)
		}
		if b.Redis.Exists("k") {
			t.Error("it is left behind")
		}
		release(t, writer)
		empty(t, b, other)
	})
}
