package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// One server acts on everything and is never heard.
func TestServerRedLockLostReplies(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	clients, links := f.behind(t)
	const wait = 20 * time.Second // for an answer: one such wait is more than all else takes
	l := quorum(t, clients, holdfast.WithTTL(time.Minute), redlock.WithNodeTimeout(wait))
	release(t, obtain(t, l, "k"))
	f.empty(t, "k") // or two may still have it, and the silent one decides
	links[2].OnCommand(func([]string) servertest.Verdict { return servertest.LoseReply })
	began, last := time.Now(), int64(0)
	for range 20 {
		lock := obtain(t, l, "k")
		if lock.Token() <= last {
			t.Errorf("token %d after %d", lock.Token(), last)
		}
		last = lock.Token()
		fine(t, lock.Extend(background, 61*time.Second))
		release(t, lock)
	}
	atMost(t, began, wait)
	links[2].OnCommand(nil)
	links[2].Reset()
	shutdown(t, l)
	f.empty(t, "k")
}

// Several processes contend while servers are stopped, killed and started again, and links are cut, slow, lossy and
// reset. One call in four takes several keys. make soak goes on for DURATION.
func TestServerRedLockSoak(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		opts []holdfast.Option
		ripe time.Duration // until servers vote
	}{
		"durable":   {servertest.Durable, nil, 0},
		"forgetful": {nil, []holdfast.Option{redlock.WithQuarantine(12 * time.Second)}, 14 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			length := 6 * time.Second
			if os.Getenv("HOLDFAST_SOAK") != "" {
				var err error
				if length, err = time.ParseDuration(os.Getenv("DURATION")); err != nil {
					t.Fatal(err)
				}
			}
			// On a busy machine nobody answers within a tenth of the TTL.
			opts := append(c.opts, holdfast.WithTTL(2*time.Second), redlock.WithNodeTimeout(800*time.Millisecond))
			storm(t, startFleet(t, 5, c.args...), opts, c.ripe, length)
		})
	}
}

// behind makes clients that reach the servers through proxies of their own.
func (f fleet) behind(t *testing.T) (clients []*redis.Client, links []*servertest.FaultProxy) {
	t.Helper()
	for _, s := range f {
		p := servertest.Proxy(t, s.Addr())
		clients, links = append(clients, p.Client()), append(links, p)
	}
	return clients, links
}

// witness sees all locks of a test.
type witness struct {
	mu    sync.Mutex
	live  map[*holdfast.Lock]bool
	last  map[string]int64 // of each key
	holds int
}

// saw is told of a lock as soon as a call has it. No other of its key may be held with it, and tokens rise.
func (w *witness) saw(t *testing.T, lock *holdfast.Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.live {
		switch {
		case other.Key() != lock.Key():
		case other.Err() != nil:
			delete(w.live, other)
		case lock.Err() == nil: // since before the other was asked
			t.Errorf("two holders of %s, %d and %d", lock.Key(), other.Token(), lock.Token())
		}
	}
	// One that is over already may be told of late.
	if lock.Err() == nil {
		last := w.last[lock.Key()]
		if lock.Token() <= last {
			t.Errorf("token %d of %s after %d", lock.Token(), lock.Key(), last)
		}
		w.last[lock.Key()] = max(last, lock.Token())
	}
	w.holds++
	w.live[lock] = true
}

func (w *witness) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holds
}

// sees watches all locks that ctx carries for a while.
func (w *witness) sees(t *testing.T, ctx context.Context, then ...func()) {
	locks := holdfast.Held(ctx)
	for _, lock := range locks {
		w.saw(t, lock)
	}
	select {
	case <-ctx.Done():
	case <-time.After(aWhile()):
	}
	for _, do := range then {
		do()
	}
	for _, lock := range locks {
		w.forget(lock)
	}
}

func (w *witness) forget(lock *holdfast.Lock) {
	w.mu.Lock()
	delete(w.live, lock)
	w.mu.Unlock()
}

// aWhile is for how long a lock is held: mostly little, now and then for up to a lease.
func aWhile() time.Duration {
	if rand.IntN(20) == 0 {
		return time.Duration(rand.IntN(2000)) * time.Millisecond
	}
	return time.Duration(rand.IntN(5)) * time.Millisecond
}

// some are two of three keys or all, in any order.
func some() (keys []string) {
	for _, i := range rand.Perm(3)[:2+rand.IntN(2)] {
		keys = append(keys, []string{"k", "l", "m"}[i])
	}
	return keys
}

func storm(t *testing.T, f fleet, opts []holdfast.Option, ripe, length time.Duration) {
	time.Sleep(ripe)
	w := &witness{live: map[*holdfast.Lock]bool{}, last: map[string]int64{}}
	var ls []*holdfast.Locker
	var links [][]*servertest.FaultProxy
	var failed, lost, several atomic.Int64
	var busy atomic.Bool // the machine is: hardly a call gets through between faults, and fewest of those that take several keys
	over := make(chan struct{})
	var workers sync.WaitGroup
	ms := func(n int) time.Duration { return time.Duration(1+rand.IntN(n)) * time.Millisecond }
	for range 4 {
		clients, mine := f.behind(t)
		l := quorum(t, clients, opts...)
		ls, links = append(ls, l), append(links, mine)
		call := func(kind, i int) error {
			patience := ms(3000)
			if busy.Load() {
				patience += 10 * time.Second
			}
			ctx, cancel := context.WithTimeout(background, patience)
			defer cancel()
			if kind == 3 {
				return l.DoAll(ctx, some(), func(ctx context.Context) error { several.Add(1); w.sees(t, ctx); return nil })
			}
			take := l.Acquire
			if kind == 0 && i%2 == 0 {
				take = l.TryAcquire
			}
			lock, err := take(ctx, "k")
			if err != nil {
				return err
			}
			w.sees(t, lock.Context(background), func() {
				if rand.IntN(5) == 0 {
					_ = lock.Extend(ctx, 2100*time.Millisecond)
				}
			})
			if err := lock.Release(ctx); errors.Is(err, holdfast.ErrLost) {
				lost.Add(1)
			}
			return nil
		}
		for kind := range 4 {
			workers.Go(func() {
				for i := 0; !closed(over); i++ {
					if err := call(kind, i); err != nil {
						failed.Add(1)
						expected(t, err)
					}
				}
			})
		}
	}
	var crash time.Time // of the last server that may be in quarantine
	var done [8]int
	least := 2 * int(length/time.Second)
	calm := 100
	for began := time.Now(); !t.Failed(); time.Sleep(ms(calm)) {
		if d := time.Since(began); d > length {
			if w.count() >= least && int(several.Load()) >= least/2 || d > length+hang {
				break
			}
			calm = min(max(3000, 2*calm), 12_000)
			busy.Store(true)
		}
		i, fault := rand.IntN(len(f)), rand.IntN(len(done))
		if fault == 0 && time.Since(crash) < ripe/2 { // or nobody ever votes
			continue
		}
		done[fault]++
		mine := links[rand.IntN(len(links))]
		link := mine[i]
		switch fault {
		case 0:
			f[i].Kill()
			time.Sleep(ms(200))
			f[i].Start()
			crash = time.Now()
		case 1, 2: // one, or a majority at times for longer than a lease
			some := append(f[i:len(f):len(f)], f[:i]...)[:2*fault-1]
			each(some, (*servertest.Server).Pause)
			time.Sleep(ms([]int{0, 400, 3000}[fault]))
			each(some, (*servertest.Server).Resume)
		case 3: // one process sees another majority than the others
			for k := range 2 + rand.IntN(2) {
				[]func(){mine[(i+k)%5].CutUp, mine[(i+k)%5].CutDown}[k%2]()
			}
			time.Sleep(ms(1000))
			each(mine, (*servertest.FaultProxy).Heal)
		case 4:
			link.Reset()
		case 5:
			each(links, func(all []*servertest.FaultProxy) { all[i].Reset() })
		case 6:
			link.Delay(ms(50))
			time.Sleep(ms(200))
			link.Delay(0)
		case 7:
			link.OnCommand(func([]string) servertest.Verdict {
				return []servertest.Verdict{servertest.Pass, servertest.LoseReplyAndClose, servertest.LoseRequestAndClose}[rand.IntN(3)]
			})
			time.Sleep(ms(300))
			link.OnCommand(nil)
		}
	}
	close(over)
	within(t, "the calls", workers.Wait)
	// It works again, as soon as enough servers vote, for longer than Acquire tries, which gives up after a lease without a
	// majority. A renewal comes, and calls that take several keys come to an end, in whatever order they name them.
	ctx, cancel := context.WithTimeout(background, 2*hang)
	defer cancel()
	again := func(try func() error) {
		err := errors.New("not tried")
		for err != nil && ctx.Err() == nil {
			err = try()
		}
		fine(t, err)
	}
	for i, l := range ls {
		again(func() error {
			lock, err := l.Acquire(ctx, "k")
			if err != nil {
				return err
			}
			w.saw(t, lock)
			w.forget(lock)
			if i == 0 {
				awaitRenewal(t, lock)
			}
			_ = lock.Release(background) // a busy machine may lose it
			return nil
		})
	}
	var all sync.WaitGroup
	for _, l := range ls {
		all.Go(func() {
			again(func() error {
				return l.DoAll(ctx, some(), func(ctx context.Context) error { w.sees(t, ctx); return nil })
			})
		})
	}
	all.Wait()
	for _, l := range ls {
		within(t, "Shutdown", func() { shutdown(t, l) })
	}
	f.empty(t, "k", "l", "m")
	t.Logf("%d holds, %d of them lost, %d calls had several, %d calls failed; faults %v", w.holds, lost.Load(), several.Load(), failed.Load(), done)
	if w.holds < least || int(several.Load()) < least/2 {
		t.Error("that is a storm of nothing")
	}
}

// closed tells whether c is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
