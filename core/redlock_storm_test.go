package holdfast_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Three processes and five masters, through cuts, hangs, losses and restarts. make soak goes on for DURATION.
func TestRedLockStorm(t *testing.T) {
	t.Parallel()
	for seed := range seeds(t, 1) {
		bubbleOf(t, 5, func(t *testing.T, ms masters) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			var mu sync.Mutex
			random := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
			h := &holders{t: t}
			long := 40 * time.Second
			if os.Getenv("HOLDFAST_SOAK") == "" {
				long /= 2
			}
			ctx, cancel := context.WithTimeout(background, long)
			defer cancel()
			var all sync.WaitGroup
			var vs []*voter
			turns := 0
			storm := true
			for range 3 {
				v := ms.voter(t, holdfast.WithTTL(2*time.Second), holdfast.WithQuarantine(10*time.Second))
				vs = append(vs, v)
				for _, l := range v.links {
					l.Delay(time.Duration(1+random(4)) * time.Millisecond)
					l.OnCommand(func([]string) servertest.Verdict {
						mu.Lock()
						on := storm
						mu.Unlock()
						if !on {
							return servertest.Pass
						}
						switch random(60) {
						case 0:
							return servertest.LoseReply
						case 1:
							return servertest.LoseReplyAndClose
						case 2:
							return servertest.LoseRequestAndClose
						case 3:
							c := make(chan struct{})
							time.AfterFunc(time.Duration(random(3000))*time.Millisecond, func() { close(c) })
							return servertest.HoldRequest(c)
						case 4:
							c := make(chan struct{})
							time.AfterFunc(time.Duration(random(3000))*time.Millisecond, func() { close(c) })
							return servertest.HoldReply(c)
						}
						return servertest.Pass
					})
				}
				for range 2 {
					all.Go(func() {
						for ctx.Err() == nil {
							c, stop := context.WithTimeout(ctx, time.Duration(1+random(5000))*time.Millisecond)
							lock, err := v.Acquire(c, "k")
							stop()
							if err != nil {
								if !errors.Is(err, holdfast.ErrNotAcquired) && !errors.Is(err, holdfast.ErrUnavailable) {
									t.Error(err)
								}
								time.Sleep(time.Duration(random(100)) * time.Millisecond)
								continue
							}
							h.enter(lock)
							mu.Lock()
							turns++
							mu.Unlock()
							time.Sleep(time.Duration(random(300)) * time.Millisecond)
							if random(10) == 0 {
								time.Sleep(3 * time.Second)
							}
							if err := lock.Release(background); err != nil && !errors.Is(err, holdfast.ErrLost) && !errors.Is(err, holdfast.ErrUnavailable) {
								t.Error(err)
							}
						}
					})
				}
			}
			for ctx.Err() == nil {
				time.Sleep(time.Duration(random(3000)) * time.Millisecond)
				m, v := ms[random(5)], vs[random(3)]
				switch random(5) {
				case 0:
					m.Pause()
					time.AfterFunc(time.Duration(random(4000))*time.Millisecond, m.Resume)
				case 1:
					l := v.links[random(5)]
					l.CutUp()
					time.AfterFunc(time.Duration(random(4000))*time.Millisecond, l.Heal)
				case 2:
					l := v.links[random(5)]
					l.CutDown()
					time.AfterFunc(time.Duration(random(4000))*time.Millisecond, l.Heal)
				case 3:
					m.Restart()
					time.Sleep(12 * time.Second) // one at a time: more may end the lock
				}
			}
			mu.Lock()
			storm = false
			mu.Unlock()
			time.Sleep(5 * time.Second)
			all.Wait()
			for _, v := range vs {
				shutdown(t, v.Locker)
			}
			if n := ms.having("k"); n != 0 {
				t.Errorf("seed %d: the key is left on %d masters", seed, n)
			}
			t.Logf("seed %d: %d turns", seed, turns)
			synctest.Wait()
		})
	}
}

// holders checks that nobody has a lock beside another, by what they are told, and that tokens rise.
type holders struct {
	t    *testing.T
	mu   sync.Mutex
	last int64
	all  []*holdfast.Lock
}

func (h *holders) enter(lock *holdfast.Lock) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.all {
		if o.Err() == nil {
			h.t.Errorf("%d has the lock beside %d", lock.Token(), o.Token())
		}
	}
	if lock.Token() <= h.last {
		h.t.Errorf("token %d after %d", lock.Token(), h.last)
	}
	h.last = max(h.last, lock.Token())
	h.all = []*holdfast.Lock{lock}
}
