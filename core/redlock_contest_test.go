package holdfast_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// Waiters are served in turn, and mostly by one look each.
func TestRedLockServesProcessesInTurn(t *testing.T) {
	t.Parallel()
	sizes := []int{3, 5}
	if underRace {
		sizes = sizes[:1]
	}
	for _, nodes := range sizes {
		bubbleOf(t, nodes, func(t *testing.T, ms masters) {
			c := ms.contend(t, 8, time.Second, 5*time.Millisecond, 0, spread)
			t.Log(c)
			if c.jain < 0.9 || c.worst > time.Second || c.perTurn > 6 || c.sum < 30 {
				t.Errorf("%d masters: %v", nodes, c)
			}
		})
	}
}

// A long wait costs each master less than a command per second.
func TestRedLockIdleWaiters(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b, c := ms.voter(t), ms.voter(t), ms.voter(t)
		lock := acquire(t, a.Locker, "k")
		ctx, cancel := context.WithCancel(background)
		done := make(chan bool)
		for _, v := range []*voter{b, b, b, c} {
			go func() { _, _ = v.Acquire(ctx, "k"); done <- true }()
		}
		time.Sleep(10 * time.Second)
		for _, m := range ms {
			m.ResetCommands()
		}
		time.Sleep(100 * time.Second)
		for _, v := range []*voter{b, c} {
			for _, l := range v.links {
				if n := l.Commands()["evalsha"]; n > 100 {
					t.Errorf("a master was asked %d times in 100 s", n)
				}
			}
		}
		t.Log(b.links[0].Commands())
		cancel()
		for range 4 {
			<-done
		}
		release(t, lock)
		for _, v := range []*voter{a, b, c} {
			shutdown(t, v.Locker)
		}
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
			got := make(chan *holdfast.Lock, 1)
			go func() {
				lock, err := v.Acquire(background, "k")
				if err != nil {
					t.Error(err)
				}
				got <- lock
			}()
			time.Sleep(time.Second + rand.N(time.Second))
			for _, m := range ms {
				m.Redis.Del("k")
			}
			began := time.Now()
			releaseAll(t, <-got)
			if d := time.Since(began); d > 2*time.Second+10*time.Millisecond {
				t.Errorf("noticed after %v", d)
			}
		}
		shutdown(t, v.Locker)
	})
}

// contest is what came of several processes that want one lock again and again.
type contest struct {
	turns   []int         // by process
	worst   time.Duration // wait
	overall time.Duration // mean wait
	jain    float64
	perTurn float64 // commands per turn and master
	sum     int
}

func (c contest) String() string {
	return fmt.Sprintf("%d turns %v, jain %.3f, worst wait %v, mean %v, %.2f commands per turn and master", c.sum, c.turns, c.jain, c.worst, c.overall, c.perTurn)
}

// contend has n processes take turns at one key for d, each holding it for hold and pausing for rest between, over links
// with one-way delays of 1 to 5 ms, or without where slow is false.
func (ms masters) contend(t *testing.T, n int, d, hold, rest time.Duration, links func(i, j int) time.Duration, opts ...holdfast.Option) contest {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var c contest
	c.turns = make([]int, n)
	waits := make([][]time.Duration, n)
	var inside atomic.Int32
	var last atomic.Int64
	var all []*voter
	done := make(chan struct{})
	for i := range n {
		v := ms.voter(t, opts...)
		all = append(all, v)
		for j, l := range v.links {
			if d := links(i, j); d > 0 {
				l.Delay(d)
			}
		}
	}
	for _, m := range ms {
		m.ResetCommands()
	}
	for i, v := range all {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				began := time.Now()
				lock, err := v.Acquire(ctx, "k")
				if err != nil {
					waits[i] = append(waits[i], time.Since(began))
					if ctx.Err() == nil {
						t.Errorf("Acquire: %v", err)
					}
					return
				}
				waits[i] = append(waits[i], time.Since(began))
				if inside.Add(1) != 1 {
					t.Error("two holders")
				}
				if was := last.Swap(lock.Token()); was >= lock.Token() {
					t.Errorf("token %d after %d", lock.Token(), was)
				}
				c.turns[i]++
				time.Sleep(hold)
				inside.Add(-1)
				if err := lock.Release(context.Background()); err != nil {
					t.Errorf("Release: %v", err)
				}
				if rest > 0 {
					time.Sleep(rest)
				}
			}
		}()
	}
	for range n {
		<-done
	}
	commands := ms.commands()
	var squares, sum float64
	var total time.Duration
	k := 0
	for i := range n {
		x := float64(c.turns[i])
		sum, squares = sum+x, squares+x*x
		c.sum += c.turns[i]
		for _, w := range waits[i] {
			c.worst = max(c.worst, w)
			total += w
			k++
		}
	}
	c.jain = sum * sum / (float64(n) * squares)
	c.overall = total / time.Duration(k)
	c.perTurn = float64(commands) / float64(c.sum) / float64(len(ms))
	for _, v := range all {
		shutdown(t, v.Locker)
	}
	return c
}

func spread(i, j int) time.Duration { return time.Millisecond + rand.N(4*time.Millisecond) }
