package holdfast_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// crowd are calls for k, some at once, whose functions take d. It counts what each name got.
type crowd struct {
	t   *testing.T
	all sync.WaitGroup
	in  inside

	mu     sync.Mutex
	served map[string]int
	waits  map[string][]time.Duration
}

func newCrowd(t *testing.T) *crowd {
	return &crowd{t: t, in: inside{t: t}, served: map[string]int{}, waits: map[string][]time.Duration{}}
}

// once is one call for name.
func (c *crowd) once(ctx context.Context, r *replica, name string, d time.Duration, opts ...holdfast.CallOption) {
	if name != "" {
		opts = append(slices.Clone(opts), holdfast.WithShare(name))
	}
	began := time.Now()
	lock, err := r.Acquire(ctx, "k", opts...)
	if err != nil {
		if ctx.Err() == nil {
			c.t.Error(err)
		}
		return
	}
	c.mu.Lock()
	c.served[name]++
	c.waits[name] = append(c.waits[name], time.Since(began))
	c.mu.Unlock()
	c.in.enter(lock)
	time.Sleep(d)
	c.in.leave(lock)
	release(c.t, lock)
}

// burst sends n calls for name at once.
func (c *crowd) burst(r *replica, n int, name string, d time.Duration, opts ...holdfast.CallOption) {
	for range n {
		c.all.Go(func() { c.once(background, r, name, d, opts...) })
	}
}

// loop has n callers for name, each of which calls again and again until ctx ends.
func (c *crowd) loop(ctx context.Context, r *replica, n int, name string, d time.Duration, opts ...holdfast.CallOption) {
	for range n {
		c.all.Go(func() {
			for ctx.Err() == nil {
				c.once(ctx, r, name, d, opts...)
			}
		})
	}
}

// equal checks that the names in got have had parts as in want, within some percent.
func (c *crowd) equal(percent float64, want map[string]float64) {
	c.t.Helper()
	total, parts := 0, 0.0
	for name, part := range want {
		total, parts = total+c.served[name], parts+part
	}
	for name, part := range want {
		if ideal := float64(total) * part / parts; math.Abs(float64(c.served[name])-ideal) > ideal*percent/100 {
			c.t.Errorf("%q got %d of %d grants, want %.0f: %v", name, c.served[name], total, ideal, c.served)
		}
	}
}

// A burst of one name does not keep a call of another from the lock, in one process and in several.
func TestShareIsNextBesideABurst(t *testing.T) {
	for _, processes := range []int{1, 2} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				one, other := newReplica(t, b), newReplica(t, b)
				warm(t, one)
				warm(t, other)
				if processes == 1 {
					other = one
				}
				c, four := newCrowd(t), holdfast.WithLimit(4)
				began := time.Now()
				c.burst(one, 200, "a", 20*time.Millisecond, four)
				for i := range 18 {
					c.all.Go(func() {
						time.Sleep(time.Duration(50+50*i) * time.Millisecond)
						c.once(background, other, "b", 20*time.Millisecond, four)
					})
				}
				c.all.Wait()
				if took := time.Since(began); took > 1150*time.Millisecond { // 218 calls, 4 at a time, are 1.09 s
					t.Errorf("all took %v", took)
				}
				waits := slices.Sorted(slices.Values(c.waits["b"]))
				if most := waits[len(waits)-1]; most > 25*time.Millisecond {
					t.Errorf("b waited up to %v", most)
				}
				if processes == 2 {
					shutdown(t, other.Locker)
				}
				empty(t, b, one)
			})
		})
	}
}

// While all have calls, each name gets its part, whatever the number of its callers.
func TestShareOfClosedLoops(t *testing.T) {
	for _, c := range []struct {
		name    string
		callers map[string]int
		weights map[string]int
		want    map[string]float64
		limit   int
		one     bool // process
	}{
		{name: "equal", callers: map[string]int{"a": 50, "b": 10, "c": 5}, want: map[string]float64{"a": 1, "b": 1, "c": 1}, limit: 2},
		{name: "alone", callers: map[string]int{"a": 50, "b": 10, "c": 2}, want: map[string]float64{"a": 1, "b": 1, "c": 1}, limit: 1},
		{name: "weights", callers: map[string]int{"a": 12, "b": 12, "c": 12}, weights: map[string]int{"b": 2, "c": 4},
			want: map[string]float64{"a": 1, "b": 2, "c": 4}, limit: 3},
		{name: "weights in one process", callers: map[string]int{"a": 12, "b": 12, "c": 12}, weights: map[string]int{"b": 2, "c": 4},
			want: map[string]float64{"a": 1, "b": 2, "c": 4}, limit: 3, one: true},
		{name: "without a name", callers: map[string]int{"": 40, "b": 8}, want: map[string]float64{"": 1, "b": 1}, limit: 2},
		{name: "without a name, with a weight", callers: map[string]int{"": 20, "b": 20}, weights: map[string]int{"": 3}, want: map[string]float64{"": 3, "b": 1}, limit: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				rs := []*replica{newReplica(t, b), newReplica(t, b)}
				if _, unnamed := c.callers[""]; unnamed { // which would hand over for longer
					rs = []*replica{newReplica(t, b, holdfast.WithLocalHandover(0, 0)), newReplica(t, b, holdfast.WithLocalHandover(0, 0))}
				}
				if c.one {
					shutdown(t, rs[1].Locker)
					rs = rs[:1]
				}
				for _, r := range rs {
					warm(t, r)
				}
				all := newCrowd(t)
				ctx, cancel := context.WithTimeout(background, 2500*time.Millisecond)
				for name, n := range c.callers {
					opts := []holdfast.CallOption{holdfast.WithLimit(c.limit)}
					if w := c.weights[name]; w > 0 {
						opts = append(opts, holdfast.WithShareWeight(w))
					}
					for i := range n {
						all.loop(ctx, rs[i%len(rs)], 1, name, 5*time.Millisecond, opts...)
					}
				}
				all.all.Wait()
				cancel()
				all.equal(4, c.want) // a few calls of 2,000
				empty(t, b, rs...)
			})
		})
	}
}

// A name whose calls give up is charged nothing for them, and one that waits alone gets everything.
func TestShareOfCallsThatGiveUp(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		warm(t, r)
		warm(t, other)
		c := newCrowd(t)
		ctx, cancel := context.WithTimeout(background, 3*time.Second)
		defer cancel()
		c.loop(ctx, r, 30, "patient", 20*time.Millisecond)
		for i := range 40 {
			c.all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				for ctx.Err() == nil {
					hurried, stop := context.WithTimeout(ctx, 100*time.Millisecond)
					c.once(hurried, other, "hurried", 20*time.Millisecond)
					stop()
				}
			})
		}
		c.all.Wait()
		c.equal(10, map[string]float64{"patient": 1, "hurried": 1})

		alone := newCrowd(t)
		ctx, cancel = context.WithTimeout(background, time.Second)
		defer cancel()
		alone.loop(ctx, r, 10, "alone", 20*time.Millisecond)
		alone.all.Wait()
		if n := alone.served["alone"]; n < 45 {
			t.Errorf("%d calls of 20 ms in a second", n)
		}
		empty(t, b, r, other)
	})
}

// A hand-over within a process costs nothing and is bounded by a short time, and no share takes over the lock of another.
func TestShareHandsOver(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		c := newCrowd(t)
		lock := acquire(t, r.Locker, "k", holdfast.WithShare("a"))
		b.ResetCommands()
		c.burst(r, 60, "a", 0)
		synctest.Wait()
		before := b.Commands().Total()
		release(t, lock)
		c.all.Wait()
		if n := b.Commands().Total() - before; n > 6 { // the release, the second call in line, and one more tenure at most
			t.Errorf("%d commands for 60 calls", n)
		}

		lock = acquire(t, r.Locker, "k", holdfast.WithShare("a"))
		var order []string
		for _, name := range strings.Fields("a a a b b b") {
			c.all.Go(func() {
				lock, err := r.Acquire(background, "k", holdfast.WithShare(name))
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, name)
				time.Sleep(6 * time.Millisecond) // longer than a tenure with a share is handed over
				release(t, lock)
			})
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		release(t, lock)
		c.all.Wait()
		for i := 0; i+1 < len(order); i += 2 {
			if order[i] == order[i+1] {
				t.Errorf("served in the order %v", order)
			}
		}
		empty(t, b, r)
	})
}

// Inspect and the hook Waiting know of names, also with the strangest.
func TestShareIsSeen(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var mu sync.Mutex
		seen := map[string]int{}
		r := newReplica(t, b, holdfast.WithTrace(&holdfast.Trace{Waiting: func(e holdfast.Event) { mu.Lock(); seen[e.Share]++; mu.Unlock() }}))
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		c := newCrowd(t)
		names := []string{"", "a b", "a%20b", "é\n\x00", "=", "a!", strings.Repeat("x", 128)}
		for _, name := range names {
			c.burst(r, 1, name, time.Millisecond)
		}
		time.Sleep(time.Second)
		state, err := r.Inspect(background, "k")
		// The call without a name waits in the process, behind the one that has the lock.
		if err != nil || state.Waiting != len(names)-1 || state.Shares != len(names)-1 || state.WaitingHere != len(names) || !state.Here {
			t.Errorf("%+v, %v", state, err)
		}
		release(t, lock)
		c.all.Wait()
		for _, name := range names {
			if seen[name] != 1 || c.served[name] != 1 {
				t.Errorf("%q was seen %d times, served %d times", name, seen[name], c.served[name])
			}
		}
		if state, err := r.Inspect(background, "k"); err != nil || state.Waiting != 0 || state.Shares != 0 {
			t.Errorf("%+v, %v", state, err)
		}
		empty(t, b, r)
	})
}

func TestSharesThatCannotBe(t *testing.T) {
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		one := newReplica(t, ms[0])
		for _, opt := range []holdfast.CallOption{
			holdfast.WithShare(""), holdfast.WithShare(strings.Repeat("x", 129)), holdfast.WithShareWeight(0), holdfast.WithShareWeight(101), holdfast.WithShareWeight(-1),
		} {
			_, err := one.Acquire(background, "k", opt)
			wantIs(t, err, holdfast.ErrInvalid)
		}
		several := ms.voter(t, redlock.WithQuarantine(0))
		for _, opt := range []holdfast.CallOption{holdfast.WithShare("a"), holdfast.WithShareWeight(2)} {
			_, err := several.Acquire(background, "k", opt)
			wantIs(t, err, holdfast.ErrInvalid)
		}
		shutdown(t, one.Locker)
		shutdown(t, several.Locker)
	})
}

// A line that has lost a part, to an eviction, say, is made anew by the looks of its waiters.
func TestShareAfterTheDataWasLost(t *testing.T) {
	for _, key := range []string{lineKey, waitKey, "{k}:~share"} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r := newReplica(t, b)
			warm(t, r)
			lock := acquire(t, r.Locker, "k")
			c := newCrowd(t)
			for _, name := range strings.Fields("a a a b c d e") {
				c.burst(r, 1, name, 10*time.Millisecond)
			}
			time.Sleep(time.Second)
			if !b.Redis.Exists(key) {
				t.Fatalf("there is no %s", key)
			}
			b.Redis.Del(key)
			began := time.Now()
			release(t, lock)
			c.all.Wait()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("without %s they took %v", key, took)
			}
			empty(t, b, r)
		})
	}
}
