package holdfast_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestEachTickIsClaimedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		replicas := make([]*replica, 5)
		for i := range replicas {
			replicas[i] = newReplica(t, b)
		}
		noon := time.Now().Truncate(time.Minute).Add(time.Minute)
		for n := range 8 {
			at := noon.Add(time.Duration(n) * time.Minute)
			var won atomic.Int64
			var wg sync.WaitGroup
			for i, r := range replicas {
				wg.Go(func() {
					// Clocks 0 to 4 s behind, and the last asks again half a minute later.
					time.Sleep(time.Until(at) + time.Duration(i)*time.Second)
					for range 2 {
						if claim(t, r.Locker, at) {
							won.Add(1)
						}
						time.Sleep(30 * time.Second)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("tick %d went to %d replicas", n, won.Load())
			}
			noon = noon.Add(time.Minute) // the next one was missed
		}
		if claim(t, replicas[0].Locker, noon.Add(-10*time.Minute)) {
			t.Error("an earlier tick was granted after a later one")
		}
	})
}

func TestClaimCostsOneCommandAndItsMarkExpires(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		claim(t, r.Locker, time.Now())
		b.ResetCommands()
		now := time.Now().Add(time.Second)
		if !claim(t, r.Locker, now) || b.Commands().Total() != 1 {
			t.Errorf("%d commands, want the claim alone", b.Commands().Total())
		}
		if ttl := b.Redis.TTL("{job}:~mark"); ttl < time.Hour || ttl > time.Hour+5*time.Second {
			t.Errorf("the mark expires in %v, want as long as its tick can be claimed", ttl)
		}
		lock := acquire(t, r.Locker, "job") // a lock of the same name is something else
		release(t, lock)
		// Once the mark has expired the tick is too old.
		time.Sleep(time.Hour + 2*time.Second)
		if b.Redis.Exists("{job}:~mark") {
			t.Error("the mark is still there")
		}
		_, err := tick.Claim(background, r.Locker, "job", now)
		wantIs(t, err, tick.ErrWindow)
	})
}

// A tick outside the window is an error and leaves the mark alone; its edges are inside.
func TestTicksOutsideTheWindowLeaveTheMarkAlone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		now := time.Now()
		for _, d := range []time.Duration{time.Hour, 10*time.Second + time.Millisecond, -time.Hour - time.Millisecond} {
			ok, err := tick.Claim(background, r.Locker, "job", now.Add(d))
			wantIs(t, err, tick.ErrWindow)
			if ok || !contains(err, `"job"`) {
				t.Errorf("%v off: got %v, %v", d, ok, err)
			}
		}
		unheld(t, b, "{job}:~mark")
		for _, d := range []time.Duration{-time.Hour, 0, 10 * time.Second} {
			claimed(t, r.Locker, now.Add(d), true)
		}
		claimed(t, r.Locker, now.Add(time.Minute), true, tick.WithWindow(time.Minute, time.Minute))
		_, err := tick.Claim(background, r.Locker, "job", now.Add(-2*time.Minute), tick.WithWindow(time.Minute, 0))
		wantIs(t, err, tick.ErrWindow)
	})
}

func TestMinGapKeepsTicksApart(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		begin := time.Now()
		granted := 0
		// Three replicas with "@every 10m", a phase each, for an hour.
		for d := time.Duration(0); d < time.Hour; d += time.Minute {
			if phase := d % (10 * time.Minute); phase == 0 || phase == 3*time.Minute || phase == 7*time.Minute {
				time.Sleep(time.Until(begin.Add(d)))
				if claim(t, r.Locker, begin.Add(d), tick.WithMinGap(10*time.Minute)) {
					granted++
				}
			}
		}
		if granted != 6 {
			t.Errorf("%d runs in an hour of ten-minute periods, want 6", granted)
		}
		// A gap longer than the window is remembered for as long.
		claimed(t, r.Locker, time.Now().Add(time.Second), true, tick.WithWindow(time.Minute, time.Minute))
		_ = claim(t, r.Locker, time.Now().Add(2*time.Second), tick.WithWindow(time.Minute, time.Minute), tick.WithMinGap(0))
		for _, c := range []struct {
			after time.Duration
			want  bool
		}{{time.Hour, true}, {23 * time.Hour, false}, {time.Hour, true}} {
			time.Sleep(c.after)
			claimed(t, r.Locker, time.Now(), c.want, tick.WithMinGap(24*time.Hour))
		}
	})
}

// A claim with a narrow window does not shorten the memory of one with a wide window.
func TestClaimKeepsTheWiderWindow(t *testing.T) {
	for _, n := range []int{1, 3} {
		bubbleOf(t, n, func(t *testing.T, ms masters) {
			l := ms.voter(t).Locker
			if n == 1 {
				l = newLocker(t, ms[0].Client())
			}
			at := time.Now()
			claimed(t, l, at, true)
			claimed(t, l, at.Add(time.Millisecond), true, tick.WithWindow(time.Second, time.Second))
			time.Sleep(5 * time.Second)
			claimed(t, l, at, false)
			shutdown(t, l)
		})
	}
}

// A claim whose answer is lost is sent again, and recognised.
func TestResentClaimIsRecognised(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, other := newReplica(t, b), newReplica(t, b)
		claim(t, r.Locker, time.Now())
		// lose loses the answer to the first command; the other replica claims its tick before that or before the second.
		lose := func(theirs time.Duration, before int64) {
			var n atomic.Int64
			at := time.Now().Add(theirs)
			r.link.OnCommand(func([]string) servertest.Verdict {
				i := n.Add(1)
				if i == before {
					claimed(t, other.Locker, at, true)
				}
				if i == 1 {
					return servertest.LoseReplyAndClose
				}
				return servertest.Pass
			})
		}
		lose(0, 0)
		claimed(t, r.Locker, time.Now().Add(time.Second), true)
		lose(5*time.Second, 2) // a later tick came between the two: nobody can know
		ok, err := tick.Claim(background, r.Locker, "job", time.Now().Add(2*time.Second))
		if wantIs(t, err, holdfast.ErrUnavailable); ok {
			t.Error("granted without knowing")
		}
		lose(6*time.Second, 1) // the very tick went to the other: then it was never this call's
		claimed(t, r.Locker, time.Now().Add(6*time.Second), false)
		r.link.OnCommand(nil)
		claimed(t, r.Locker, time.Now().Add(3*time.Second), false) // behind the mark
	})
}

// A claim ends with its context, in a second if that has no deadline, and with the Locker.
func TestClaimReturnsInTime(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		claim(t, r.Locker, time.Now())
		b.ResetCommands()
		_, err := tick.Claim(ended, r.Locker, "job", time.Now().Add(time.Second))
		wantIs(t, err, holdfast.ErrUnavailable, context.Canceled)
		sent(t, b, 0)
		r.link.CutUp()
		for _, limit := range []time.Duration{300 * time.Millisecond, time.Second} {
			ctx := background
			if limit < time.Second {
				short, cancel := context.WithTimeout(ctx, limit)
				defer cancel()
				ctx = short
			}
			begin := time.Now()
			_, err := tick.Claim(ctx, r.Locker, "job", time.Now().Add(time.Second))
			wantIs(t, err, holdfast.ErrUnavailable)
			took(t, begin, limit)
		}
		r.link.Heal()
		shutdown(t, r.Locker)
		_, err = tick.Claim(background, r.Locker, "job", time.Now())
		wantIs(t, err, holdfast.ErrClosed)
	})
}

func TestBadClaimsAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		now := time.Now()
		for what, c := range map[string]struct {
			ctx  context.Context
			name string
			at   time.Time
			opts []tick.Option
		}{
			"nil context": {nil, "job", now, nil},
			"empty name":  {background, "", now, nil},
			"bad name":    {background, "a}b", now, nil},
			"zero tick":   {background, "job", time.Time{}, nil},
			"far tick":    {background, "job", time.Unix(1<<40, 0), nil},
			"gap":         {background, "job", now, []tick.Option{tick.WithMinGap(-1)}},
			"behind":      {background, "job", now, []tick.Option{tick.WithWindow(0, 0)}},
			"ahead":       {background, "job", now, []tick.Option{tick.WithWindow(time.Hour, -1)}},
			"nil option":  {background, "job", now, []tick.Option{nil}},
		} {
			if ok, err := tick.Claim(c.ctx, r.Locker, c.name, c.at, c.opts...); ok || !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: got %v, %v, want ErrInvalid", what, ok, err)
			}
		}
		sent(t, b, 0)
		_, _ = b.Redis.Push("{job}:~mark", "x")
		_, err := tick.Claim(background, r.Locker, "job", now)
		wantIs(t, err, holdfast.ErrUnavailable)
	})
}

// Five replicas claim each tick at the same moment, on one server or five.
func TestServerGrantsEachTickOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 5} {
		f := startFleet(t, n)
		ls := claimants(t, f)
		begin := time.Now()
		for i := range 100 {
			at := begin.Add(time.Duration(i) * time.Millisecond)
			if wins, errs := claimAtOnce(ls, "job:"+strconv.Itoa(i%3), at); wins != 1 || len(errs) > 0 {
				t.Errorf("%d servers: tick %d went to %d replicas, %v", n, i, wins, errs)
			}
		}
		for _, l := range ls {
			shutdown(t, l)
		}
	}
}

// claimants are five replicas on one server or several.
func claimants(t *testing.T, f fleet, opts ...holdfast.Option) (ls []*holdfast.Locker) {
	t.Helper()
	for range 5 {
		if len(f) == 1 {
			ls = append(ls, newLocker(t, f[0].Client(), opts...))
		} else {
			ls = append(ls, f.locker(t, opts...))
		}
	}
	return ls
}

// A claim that waits, until its deadline, is one claim, however long Redis is away: what was granted without an answer is
// granted still.
func TestClaimThatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		away, wait time.Duration
		lost       bool // the first request takes effect, and its answer is lost
		won        bool
	}{
		"longer than the outage":        {away: 20 * time.Second, wait: 30 * time.Second, won: true},
		"and the answer was lost":       {away: 20 * time.Second, wait: 30 * time.Second, lost: true, won: true},
		"not as long":                   {away: 20 * time.Second, wait: 10 * time.Second},
		"not at all":                    {away: 20 * time.Second},
		"for an outage that is shorter": {away: 500 * time.Millisecond, wait: time.Minute, won: true},
	} {
		bubble(t, func(t *testing.T, b *servertest.Bubble) {
			r, other := newReplica(t, b), newReplica(t, b)
			at := time.Now().Add(time.Second)
			if c.lost {
				r.link.OnCommand(func([]string) servertest.Verdict { r.link.Refuse(errRefused); return servertest.LoseReplyAndClose })
			} else {
				r.link.Refuse(errRefused)
			}
			time.AfterFunc(c.away, func() { r.link.OnCommand(nil); r.link.Refuse(nil) })
			began, ctx := time.Now(), background
			if c.wait > 0 {
				bounded, cancel := context.WithTimeout(ctx, c.wait)
				defer cancel()
				ctx = bounded
			}
			won, err := tick.Claim(ctx, r.Locker, "job", at)
			limit := c.wait + 2*time.Second
			if c.won {
				limit = c.away + time.Second
			}
			if took := time.Since(began); won != c.won || errors.Is(err, holdfast.ErrUnavailable) == c.won || took > limit {
				t.Errorf("%s: got %v, %v after %v", name, won, err, took)
			}
			time.Sleep(c.away)
			claimed(t, other.Locker, at, !c.won && !c.lost)
		})
	}
}

func TestShutdownEndsAClaimThatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(errors.New("no route"))
		time.AfterFunc(5*time.Second, func() {
			fine(t, r.Shutdown(background))
		})
		began := time.Now()
		ctx, cancel := context.WithTimeout(background, time.Hour)
		defer cancel()
		_, err := tick.Claim(ctx, r.Locker, "job", time.Now())
		if wantIs(t, err, holdfast.ErrClosed); time.Since(began) > 6*time.Second {
			t.Errorf("it took %v", time.Since(began))
		}
	})
}

// The first attempt of a claim raised the mark on three of five masters and was not heard of, and what takes it back is
// on its way. The next attempt finds it there: that is nobody else's.
func TestRedLockClaimIsNotInItsOwnWay(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		if won, err := tick.Claim(background, v.Locker, "job", time.Now().Add(-time.Second)); !won { // and the scripts are known
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		later := make(chan struct{})
		time.AfterFunc(5*time.Second, func() { close(later) })
		for _, link := range v.links[:3] {
			first := true
			link.OnCommand(func(args []string) servertest.Verdict {
				switch name := holdfast.ScriptName(args); {
				case name == "withdraw":
					return servertest.HoldRequest(later)
				case name == "tick" && first:
					first = false
					return servertest.LoseReply
				}
				return servertest.Pass
			})
		}
		if won, err := tick.Claim(background, v.Locker, "job", time.Now()); !won && err == nil {
			t.Error("somebody else has the tick, it says, and nobody else has claimed it")
		}
		<-later
		time.Sleep(10 * time.Second)
		shutdown(t, v.Locker)
	})
}

// Two of the servers forget what was claimed, again and again.
func TestServerRedLockClaimsNeverTwice(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	// A server refuses ticks that it may have granted before it started: up to so far ahead, and a second.
	opts := []holdfast.Option{redlock.WithQuarantine(6 * time.Second), holdfast.WithTTL(900 * time.Millisecond)}
	ls := claimants(t, f, opts...)
	time.Sleep(2500 * time.Millisecond)
	var ticks []time.Time
	wins := map[time.Time]int{}
	all := func(at time.Time) {
		n, _ := claimAtOnce(ls, "job", at, tick.WithWindow(time.Hour, 200*time.Millisecond))
		if wins[at] += n; wins[at] > 1 {
			t.Errorf("a tick was won %d times", wins[at])
		}
	}
	won := 0
	for i := range 2 {
		for range 20 {
			at := time.Now()
			ticks = append(ticks, at)
			all(at)
			won += wins[at]
			time.Sleep(20 * time.Millisecond)
		}
		again := ticks[len(ticks)-1]
		f[i].Kill()
		all(again)
		f[(i+2)%5].Kill()
		all(again)
		f[i].Start()
		all(again)
		f[(i+2)%5].Start()
		for began := time.Now(); time.Since(began) < 2500*time.Millisecond; time.Sleep(100 * time.Millisecond) {
			all(again)
		}
	}
	for i := len(ticks) - 1; i >= 0; i -= 5 {
		all(ticks[i])
	}
	t.Logf("%d of %d ticks were run", won, len(ticks))
	if won < len(ticks)/2 {
		t.Error("too few")
	}
	for _, l := range ls {
		shutdown(t, l)
	}
}

// claimAtOnce has all claim one tick at once.
func claimAtOnce(ls []*holdfast.Locker, name string, at time.Time, opts ...tick.Option) (wins int, errs []error) {
	type result struct {
		won bool
		err error
	}
	results, start := make(chan result), make(chan struct{})
	for _, l := range ls {
		go func() {
			<-start
			won, err := tick.Claim(background, l, name, at, opts...)
			results <- result{won, err}
		}()
	}
	close(start)
	for range ls {
		switch r := <-results; {
		case r.err != nil:
			errs = append(errs, r.err)
		case r.won:
			wins++
		}
	}
	return wins, errs
}

func claim(t *testing.T, l *holdfast.Locker, at time.Time, opts ...tick.Option) bool {
	t.Helper()
	ok, err := tick.Claim(background, l, "job", at, opts...)
	fine(t, err)
	return ok
}

// claimed is claim with a check.
func claimed(t *testing.T, l *holdfast.Locker, at time.Time, want bool, opts ...tick.Option) {
	t.Helper()
	if got := claim(t, l, at, opts...); got != want {
		t.Errorf("granted %v, want %v", got, want)
	}
}
