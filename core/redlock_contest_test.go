package holdfast_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// Waiters are served in turn, over links that differ, and mostly by one look each.
func TestRedLockServesProcessesInTurn(t *testing.T) {
	t.Parallel()
	sizes := []int{3, 5}
	if underRace {
		sizes = sizes[:1]
	}
	for _, nodes := range sizes {
		bubbleOf(t, nodes, func(t *testing.T, ms masters) {
			const n = 8
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			var vs []*voter
			for range n {
				v := ms.voter(t)
				each(v.links, func(l *servertest.Link) { l.Delay(time.Millisecond + rand.N(4*time.Millisecond)) })
				vs = append(vs, v)
			}
			each(ms, (*servertest.Bubble).ResetCommands)
			h := &holders{t: t}
			turns := make([]float64, n)
			var all sync.WaitGroup
			for i, v := range vs {
				all.Go(func() {
					for {
						lock, err := v.Acquire(ctx, "k")
						if err != nil {
							wantIs(t, err, context.DeadlineExceeded)
							return
						}
						h.enter(lock)
						turns[i]++
						time.Sleep(5 * time.Millisecond)
						release(t, lock)
					}
				})
			}
			all.Wait()
			var sum, squares float64
			for _, k := range turns {
				sum, squares = sum+k, squares+k*k
			}
			jain, asked := sum*sum/(n*squares), float64(ms.commands())/sum/float64(nodes)
			t.Logf("%d masters: turns %v, fairness %.3f, %.2f commands per turn and master", nodes, turns, jain, asked)
			if jain < 0.75 || asked > 6 || sum < 30 {
				t.Error("too few, not in turn, or too many looks")
			}
			for _, v := range vs {
				shutdown(t, v.Locker)
			}
		})
	}
}

// A long wait costs each master less than a command per second.
func TestRedLockIdleWaiters(t *testing.T) {
	voters(t, 5, func(t *testing.T, ms masters, a, b *voter) {
		c := ms.voter(t)
		lock := acquire(t, a.Locker, "k")
		ctx, cancel := context.WithCancel(background)
		var all sync.WaitGroup
		for _, v := range []*voter{b, b, b, c} {
			all.Go(func() { _, _ = v.Acquire(ctx, "k") })
		}
		time.Sleep(10 * time.Second)
		each(ms, (*servertest.Bubble).ResetCommands)
		time.Sleep(100 * time.Second)
		for _, l := range append(b.links, c.links...) {
			if n := l.Commands()["evalsha"]; n > 100 {
				t.Errorf("a master was asked %d times in 100 s", n)
			}
		}
		cancel()
		all.Wait()
		release(t, lock)
		shutdown(t, c.Locker)
	})
}

// Several programs that know nothing of each other have some masters each, and tell nobody when they let go: that is
// noticed within two seconds, also by a caller that polls less often.
func TestRedLockSplitPausesForTwoSecondsAtMost(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		v := ms.voter(t, holdfast.WithPolling(10*time.Second, 10*time.Second))
		for range 20 {
			for i, m := range ms {
				_ = m.Redis.Set("k", fmt.Sprint("program ", i))
			}
			next := v.next(t, "k")
			time.Sleep(time.Second + rand.N(time.Second))
			each(ms, forget("k"))
			began := time.Now()
			releaseAll(t, got(t, next))
			atMost(t, began, 2*time.Second+10*time.Millisecond)
		}
		shutdown(t, v.Locker)
	})
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
