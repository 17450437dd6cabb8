package holdfast_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestRedLockClaim(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		tick := time.Now()
		won := make(chan bool)
		for range 5 {
			v := ms.voter(t)
			go func() {
				ok, err := v.Claim(background, "job", tick)
				if err != nil {
					t.Error(err)
				}
				won <- ok
			}()
		}
		n := 0
		for range 5 {
			if <-won {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d replicas claimed the tick, want 1", n)
		}
	})
}

// The first attempt of a claim raised the mark on three of five masters and was not heard of, and what takes it back is
// on its way. The next attempt finds it there: that is nobody else's.
func TestRedLockClaimIsNotInItsOwnWay(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		v := ms.voter(t)
		if won, err := v.Claim(background, "job", time.Now().Add(-time.Second)); !won { // and the scripts are known
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
		if won, err := v.Claim(background, "job", time.Now()); !won && err == nil {
			t.Error("somebody else has the tick, it says, and nobody else has claimed it")
		}
		<-later
		time.Sleep(10 * time.Second)
		shutdown(t, v.Locker)
	})
}

// Five replicas claim each tick at the same moment.
func TestServerRedLockClaimsAtOnce(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	var ls []*holdfast.Locker
	for range 5 {
		ls = append(ls, f.locker(t))
	}
	first := time.Now().Truncate(time.Microsecond)
	var worst time.Duration
	const ticks = 200
	for i := range ticks {
		began := time.Now()
		wins, errs := claimAtOnce(ls, "job", first.Add(time.Duration(i)*time.Millisecond))
		worst = max(worst, time.Since(began))
		if wins != 1 || len(errs) > 0 {
			t.Errorf("tick %d: %d replicas won it, %v", i, wins, errs)
		}
	}
	t.Logf("%d ticks, each by 5 replicas at once; the slowest took %v", ticks, worst)
	for _, l := range ls {
		shutdown(t, l)
	}
}

// Two of the servers forget what was claimed, again and again.
func TestServerRedLockClaimsNeverTwice(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	// A server refuses ticks that it may have granted before it started: up to so far ahead, and a second.
	opts := []holdfast.Option{holdfast.WithTickWindow(time.Hour, 200*time.Millisecond), holdfast.WithQuarantine(6 * time.Second), holdfast.WithTTL(900 * time.Millisecond)}
	var ls []*holdfast.Locker
	for range 5 {
		ls = append(ls, f.locker(t, opts...))
	}
	time.Sleep(2500 * time.Millisecond)
	var ticks []time.Time
	wins := map[time.Time]int{}
	all := func(tick time.Time) {
		n, _ := claimAtOnce(ls, "job", tick)
		if wins[tick] += n; wins[tick] > 1 {
			t.Errorf("a tick was won %d times", wins[tick])
		}
	}
	won := 0
	for i := range 2 {
		for range 20 {
			tick := time.Now()
			ticks = append(ticks, tick)
			all(tick)
			won += wins[tick]
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

// A claim with a narrow window does not shorten the memory of one with a wide window.
func TestClaimKeepsTheWiderWindow(t *testing.T) {
	for _, n := range []int{1, 3} {
		bubbleOf(t, n, func(t *testing.T, ms masters) {
			l := ms.voter(t).Locker
			if n == 1 {
				l = newLocker(t, ms[0].Client())
			}
			tick := time.Now()
			claim := func(tick time.Time, want bool, opts ...holdfast.ClaimOption) {
				t.Helper()
				if ok, err := l.Claim(background, "job", tick, opts...); err != nil || ok != want {
					t.Errorf("%d masters: %v, %v, want %v", n, ok, err, want)
				}
			}
			claim(tick, true)
			claim(tick.Add(time.Millisecond), true, holdfast.WithTickWindow(time.Second, time.Second))
			time.Sleep(5 * time.Second)
			claim(tick, false)
			shutdown(t, l)
		})
	}
}

// claimAtOnce has all claim one tick at once.
func claimAtOnce(ls []*holdfast.Locker, name string, tick time.Time) (wins int, errs []error) {
	type result struct {
		won bool
		err error
	}
	results, start := make(chan result), make(chan struct{})
	for _, l := range ls {
		go func() {
			<-start
			won, err := l.Claim(background, name, tick)
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
