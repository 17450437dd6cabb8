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
			tick := noon.Add(time.Duration(n) * time.Minute)
			var won atomic.Int64
			var wg sync.WaitGroup
			for i, r := range replicas {
				wg.Go(func() {
					// Clocks 0 to 4 s behind, and the last asks again half a minute later.
					time.Sleep(time.Until(tick) + time.Duration(i)*time.Second)
					for range 2 {
						if claim(t, r.Locker, tick) {
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
		_, err := r.Claim(background, "job", now)
		wantIs(t, err, holdfast.ErrTick)
	})
}

func TestTicksOutsideTheWindowLeaveTheMarkAlone(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		now := time.Now()
		for _, d := range []time.Duration{time.Hour, 10*time.Second + time.Millisecond, -time.Hour - time.Millisecond} {
			ok, err := r.Claim(background, "job", now.Add(d))
			wantIs(t, err, holdfast.ErrTick)
			if ok || !contains(err, `"job"`) {
				t.Errorf("%v off: got %v, %v", d, ok, err)
			}
		}
		if b.Redis.Exists("{job}:~mark") {
			t.Error("a tick that was refused left a mark")
		}
		for _, d := range []time.Duration{-time.Hour, 0, 10 * time.Second} { // the edges are inside
			if !claim(t, r.Locker, now.Add(d)) {
				t.Errorf("%v off: refused", d)
			}
		}
		if !claim(t, r.Locker, now.Add(time.Minute), holdfast.WithTickWindow(time.Minute, time.Minute)) {
			t.Error("refused inside its own window")
		}
		_, err := r.Claim(background, "job", now.Add(-2*time.Minute), holdfast.WithTickWindow(time.Minute, 0))
		wantIs(t, err, holdfast.ErrTick)
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
				if claim(t, r.Locker, begin.Add(d), holdfast.WithMinGap(10*time.Minute)) {
					granted++
				}
			}
		}
		if granted != 6 {
			t.Errorf("%d runs in an hour of ten-minute periods, want 6", granted)
		}
		// A gap longer than the window is remembered for as long.
		if !claim(t, r.Locker, time.Now().Add(time.Second), holdfast.WithTickWindow(time.Minute, time.Minute)) {
			t.Error("refused")
		}
		_ = claim(t, r.Locker, time.Now().Add(2*time.Second), holdfast.WithTickWindow(time.Minute, time.Minute), holdfast.WithMinGap(0))
		time.Sleep(time.Hour)
		if !claim(t, r.Locker, time.Now(), holdfast.WithMinGap(24*time.Hour)) {
			t.Error("refused")
		}
		time.Sleep(23 * time.Hour)
		if claim(t, r.Locker, time.Now(), holdfast.WithMinGap(24*time.Hour)) {
			t.Error("granted an hour before the gap was over")
		}
		time.Sleep(time.Hour)
		if !claim(t, r.Locker, time.Now(), holdfast.WithMinGap(24*time.Hour)) {
			t.Error("refused after the gap")
		}
	})
}

// A claim whose answer is lost is sent again, and recognised.
func TestResentClaimIsRecognised(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r, c := newReplica(t, b), newReplica(t, b)
		claim(t, r.Locker, time.Now())
		lose := func(v servertest.Verdict) {
			var n atomic.Int64
			r.link.OnCommand(func(args []string) servertest.Verdict {
				if n.Add(1) == 1 {
					return v
				}
				return servertest.Pass
			})
		}
		lose(servertest.LoseReplyAndClose)
		if !claim(t, r.Locker, time.Now().Add(time.Second)) {
			t.Error("its own mark was taken for another's")
		}
		// Somebody else's later tick came between the two: nobody can know.
		var n atomic.Int64
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if n.Add(1) == 1 {
				return servertest.LoseReplyAndClose
			}
			if !claim(t, c.Locker, time.Now().Add(5*time.Second)) {
				t.Error("the other's tick was refused")
			}
			return servertest.Pass
		})
		ok, err := r.Claim(background, "job", time.Now().Add(2*time.Second))
		if wantIs(t, err, holdfast.ErrUnavailable); ok {
			t.Error("granted without knowing")
		}
		// The very tick went to somebody else: then it was never this call's.
		n.Store(0)
		tick := time.Now().Add(6 * time.Second)
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if n.Add(1) == 1 {
				if !claim(t, c.Locker, tick) {
					t.Error("the other's tick was refused")
				}
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		if claim(t, r.Locker, tick) {
			t.Error("granted twice")
		}
		if n.Load() < 2 {
			t.Error("no answer was lost: this tests nothing")
		}
		r.link.OnCommand(nil)
		if claim(t, r.Locker, time.Now().Add(3*time.Second)) {
			t.Error("granted behind the mark")
		}
	})
}

func TestClaimReturnsInTime(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		claim(t, r.Locker, time.Now())
		ended, cancel := context.WithCancel(background)
		cancel()
		b.ResetCommands()
		_, err := r.Claim(ended, "job", time.Now().Add(time.Second))
		wantIs(t, err, holdfast.ErrUnavailable, context.Canceled)
		if n := b.Commands().Total(); n != 0 {
			t.Error("a claim with an ended context used the tick up")
		}
		r.link.CutUp()
		for limit, ctx := range map[time.Duration]context.Context{time.Second: background, 300 * time.Millisecond: nil} {
			if ctx == nil {
				short, cancel := context.WithTimeout(background, limit)
				defer cancel()
				ctx = short
			}
			begin := time.Now()
			_, err := r.Claim(ctx, "job", time.Now().Add(time.Second))
			wantIs(t, err, holdfast.ErrUnavailable)
			if d := time.Since(begin); d != limit {
				t.Errorf("returned after %v, want %v", d, limit)
			}
		}
		r.link.Heal()
		shutdown(t, r.Locker)
		_, err = r.Claim(background, "job", time.Now())
		wantIs(t, err, holdfast.ErrClosed)
	})
}

func TestBadClaimsAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		var none context.Context
		for what, call := range map[string]func() (bool, error){
			"nil context": func() (bool, error) { return r.Claim(none, "job", time.Now()) },
			"empty name":  func() (bool, error) { return r.Claim(background, "", time.Now()) },
			"bad name":    func() (bool, error) { return r.Claim(background, "a}b", time.Now()) },
			"zero tick":   func() (bool, error) { return r.Claim(background, "job", time.Time{}) },
			"far tick":    func() (bool, error) { return r.Claim(background, "job", time.Unix(1<<40, 0)) },
			"gap":         func() (bool, error) { return r.Claim(background, "job", time.Now(), holdfast.WithMinGap(-1)) },
			"behind":      func() (bool, error) { return r.Claim(background, "job", time.Now(), holdfast.WithTickWindow(0, 0)) },
			"ahead": func() (bool, error) {
				return r.Claim(background, "job", time.Now(), holdfast.WithTickWindow(time.Hour, -1))
			},
			"nil option": func() (bool, error) { return r.Claim(background, "job", time.Now(), nil) },
		} {
			if ok, err := call(); ok || !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: got %v, %v, want ErrInvalid", what, ok, err)
			}
		}
		if n := b.Commands().Total(); n != 0 {
			t.Errorf("%d commands for claims that can never work", n)
		}
		_, _ = b.Redis.Push("{job}:~mark", "x")
		_, err := r.Claim(background, "job", time.Now())
		wantIs(t, err, holdfast.ErrUnavailable)
	})
}

func TestServerGrantsEachTickOnce(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	lockers := make([]*holdfast.Locker, 5)
	for i := range lockers {
		lockers[i] = newLocker(t, server.Client())
	}
	begin := time.Now()
	for n := range 50 {
		tick := begin.Add(time.Duration(n) * time.Millisecond)
		var won atomic.Int64
		var wg sync.WaitGroup
		for _, l := range lockers {
			wg.Go(func() {
				ok, err := l.Claim(background, "job:"+strconv.Itoa(n%3), tick)
				if err != nil {
					t.Error(err)
				}
				if ok {
					won.Add(1)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Errorf("tick %d went to %d replicas", n, won.Load())
		}
	}
}

// A claim that waits is one claim, however long Redis is away: what was granted without an answer is granted still.
func TestClaimThatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		away time.Duration
		wait time.Duration
		lost bool // the first request takes effect, and its answer is lost
		won  bool
		took time.Duration // at most, beyond the outage
	}{
		"longer than the outage":        {away: 20 * time.Second, wait: 30 * time.Second, won: true, took: time.Second},
		"and the answer was lost":       {away: 20 * time.Second, wait: 30 * time.Second, lost: true, won: true, took: time.Second},
		"not as long":                   {away: 20 * time.Second, wait: 10 * time.Second},
		"not at all":                    {away: 20 * time.Second},
		"for an outage that is shorter": {away: 500 * time.Millisecond, wait: time.Minute, won: true, took: time.Second},
	} {
		for _, always := range []bool{false, true} { // the option of the call, or of the Locker
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				var of []holdfast.Option
				var opts []holdfast.ClaimOption
				if c.wait > 0 && always {
					of = append(of, holdfast.WithWait(c.wait))
				} else if c.wait > 0 {
					opts = append(opts, holdfast.WithWait(c.wait))
				}
				r, other := newReplica(t, b, of...), newReplica(t, b)
				tick := time.Now().Add(time.Second)
				if c.lost {
					r.link.OnCommand(func([]string) servertest.Verdict {
						r.link.Refuse(errors.New("no route"))
						return servertest.LoseReplyAndClose
					})
				} else {
					r.link.Refuse(errors.New("no route"))
				}
				time.AfterFunc(c.away, func() {
					r.link.OnCommand(nil)
					r.link.Refuse(nil)
				})
				began := time.Now()
				won, err := r.Claim(background, "job", tick, opts...)
				took := time.Since(began)
				if c.won {
					if !won || err != nil || took > c.away+c.took {
						t.Errorf("%s: got %v, %v after %v", name, won, err, took)
					}
				} else if wantIs(t, err, holdfast.ErrUnavailable); won || took > c.wait+2*time.Second {
					t.Errorf("%s: got %v after %v", name, won, took)
				}
				time.Sleep(c.away)
				if claim(t, other.Locker, tick) == (c.won || c.lost) {
					t.Errorf("%s: the other replica has it too, or nobody", name)
				}
			})
		}
	}
}

func TestShutdownEndsAClaimThatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		r.link.Refuse(errors.New("no route"))
		time.AfterFunc(5*time.Second, func() {
			if err := r.Shutdown(background); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		_, err := r.Claim(background, "job", time.Now(), holdfast.WithWait(time.Hour))
		if wantIs(t, err, holdfast.ErrClosed); time.Since(began) > 6*time.Second {
			t.Errorf("it took %v", time.Since(began))
		}
	})
}

func claim(t *testing.T, l *holdfast.Locker, tick time.Time, opts ...holdfast.ClaimOption) bool {
	t.Helper()
	ok, err := l.Claim(background, "job", tick, opts...)
	if err != nil {
		t.Errorf("Claim(%v): %v", tick, err)
	}
	return ok
}
