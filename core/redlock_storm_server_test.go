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
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// The fastest three of five decide.
func TestServerRedLockSlowLinks(t *testing.T) {
	t.Parallel() // mostly it waits
	f := startFleet(t, 5)
	clients, links := f.behind(t)
	l := quorum(t, clients, holdfast.WithTTL(time.Minute), holdfast.WithNodeTimeout(20*time.Second))
	release(t, obtain(t, l, "k"))
	const slow = 50 * time.Millisecond
	for i := range 3 {
		if i > 0 {
			links[i-1].Delay(slow)
		}
		best := time.Hour
		// On a busy machine many may be slow, but one that had to wait for a slow link would always be.
		for end := time.Now().Add(hang); best > 2*slow && time.Now().Before(end); time.Sleep(4 * slow) { // for what is on its way there
			began := time.Now()
			lock := obtain(t, l, "k")
			release(t, lock)
			best = min(best, time.Since(began))
		}
		t.Logf("%d slow links: %v for an acquisition and its release", i, best)
		if best > 2*slow {
			t.Errorf("%d slow links: it took %v, of %v for one round trip there", i, best, 2*slow)
		}
	}
	shutdown(t, l)
	f.empty(t, "k")
}

// One server acts on everything and is never heard.
func TestServerRedLockLostReplies(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	clients, links := f.behind(t)
	const wait = 20 * time.Second // for an answer: one such wait is more than all else takes
	l := quorum(t, clients, holdfast.WithTTL(time.Minute), holdfast.WithNodeTimeout(wait))
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
		if err := lock.Extend(background, 61*time.Second); err != nil {
			t.Error(err)
		}
		release(t, lock)
	}
	if took := time.Since(began); took > wait {
		t.Errorf("it took %v", took)
	}
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
		"forgetful": {nil, []holdfast.Option{holdfast.WithQuarantine(12 * time.Second)}, 14 * time.Second},
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
			opts := append(c.opts, holdfast.WithTTL(2*time.Second), holdfast.WithNodeTimeout(800*time.Millisecond))
			storm(t, startFleet(t, 5, c.args...), opts, c.ripe, length)
		})
	}
}

// behind makes clients that reach the servers through proxies of their own.
func (f fleet) behind(t *testing.T) (clients []*redis.Client, links []*servertest.FaultProxy) {
	t.Helper()
	for _, s := range f {
		p := servertest.Proxy(t, s.Addr())
		c := redis.NewClient(&redis.Options{Addr: p.Addr()})
		t.Cleanup(func() { _ = c.Close() })
		clients, links = append(clients, c), append(links, p)
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
func (w *witness) sees(t *testing.T, ctx context.Context) {
	locks := holdfast.Held(ctx)
	for _, lock := range locks {
		w.saw(t, lock)
	}
	select {
	case <-ctx.Done():
	case <-time.After(aWhile()):
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
	over := make(chan struct{})
	var workers sync.WaitGroup
	for range 4 {
		clients, mine := f.behind(t)
		l := quorum(t, clients, opts...)
		ls, links = append(ls, l), append(links, mine)
		for g := range 4 {
			workers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-over:
						return
					default:
					}
					ctx, cancel := context.WithTimeout(background, time.Duration(1+rand.IntN(3000))*time.Millisecond)
					if g == 3 {
						err := l.DoAll(ctx, some(), func(ctx context.Context) error {
							several.Add(1)
							w.sees(t, ctx)
							return nil
						})
						cancel()
						if err != nil {
							failed.Add(1)
							if !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, holdfast.ErrNotAcquired) && !errors.Is(err, holdfast.ErrLost) {
								t.Error(err)
							}
						}
						continue
					}
					take := l.Acquire
					if g == 0 && i%2 == 0 {
						take = l.TryAcquire
					}
					lock, err := take(ctx, "k")
					if err != nil {
						failed.Add(1)
						if !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, holdfast.ErrNotAcquired) {
							t.Error(err)
						}
					} else {
						w.saw(t, lock)
						select {
						case <-lock.Context(background).Done():
						case <-time.After(aWhile()):
						}
						if rand.IntN(5) == 0 {
							_ = lock.Extend(ctx, 2100*time.Millisecond)
						}
						w.forget(lock)
						if err := lock.Release(ctx); errors.Is(err, holdfast.ErrLost) {
							lost.Add(1)
						}
					}
					cancel()
				}
			})
		}
	}
	ms := func(n int) time.Duration { return time.Duration(1+rand.IntN(n)) * time.Millisecond }
	var crash time.Time // of the last server that may be in quarantine
	var done [8]int
	least := 2 * int(length/time.Second)
	calm := 100
	for began := time.Now(); !t.Failed(); time.Sleep(ms(calm)) {
		if d := time.Since(began); d > length {
			if w.count() >= least && int(several.Load()) >= least/2 || d > length+hang {
				break
			}
			calm = 3000 // on a busy machine hardly a call gets through between faults, and fewest of those that take several keys
		}

		i := rand.IntN(len(f))
		fault := rand.IntN(len(done))
		if fault == 0 && time.Since(crash) < ripe/2 { // or nobody ever votes
			continue
		}
		done[fault]++
		link := links[rand.IntN(len(links))][i]
		switch fault {
		case 0:
			f[i].Kill()
			time.Sleep(ms(200))
			f[i].Start()
			crash = time.Now()
		case 1:
			f[i].Pause()
			time.Sleep(ms(400))
			f[i].Resume()
		case 2: // a majority, at times for longer than a lease
			for k := range 3 {
				f[(i+k)%5].Pause()
			}
			time.Sleep(ms(3000))
			for k := range 3 {
				f[(i+k)%5].Resume()
			}
		case 3: // one process sees another majority than the others
			mine := links[rand.IntN(len(links))]
			for k := range 2 + rand.IntN(2) {
				if k%2 == 0 {
					mine[(i+k)%5].CutUp()
				} else {
					mine[(i+k)%5].CutDown()
				}
			}
			time.Sleep(ms(1000))
			for _, p := range mine {
				p.Heal()
			}
		case 4:
			link.Reset()
		case 5:
			for _, all := range links {
				all[i].Reset()
			}
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
	// It works again, as soon as enough servers vote.
	for i, l := range ls {
		lock := obtainWithin(t, l, "k", 4*hang)
		w.saw(t, lock)
		w.forget(lock)
		if i == 0 {
			within(t, "a renewal", func() { awaitRenewal(t, lock) })
		}
		if err := lock.Release(background); err != nil {
			t.Logf("release: %v", err) // a busy machine may lose it
		}
	}
	// Calls that take several keys come to an end, in whatever order they name them.
	var all sync.WaitGroup
	for _, l := range ls {
		all.Go(func() {
			end, err := time.Now().Add(4*hang), errors.New("not tried")
			for err != nil && time.Now().Before(end) {
				ctx, cancel := context.WithDeadline(background, end)
				err = l.DoAll(ctx, some(), func(ctx context.Context) error { w.sees(t, ctx); return nil })
				cancel()
			}
			if err != nil {
				t.Error(err)
			}
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

// obtainWithin tries for longer than Acquire does, which gives up after a lease without a majority.
func obtainWithin(t *testing.T, l *holdfast.Locker, key string, d time.Duration) *holdfast.Lock {
	t.Helper()
	for end := time.Now().Add(d); ; {
		lock, err := l.Acquire(background, key)
		if err == nil {
			return lock
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
