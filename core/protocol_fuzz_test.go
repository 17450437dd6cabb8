package holdfast_test

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
)

// Whatever a server answers, a call returns, with what was said where it has the form that the script gives it, and else
// with an error of the package.
func FuzzReplies(f *testing.F) {
	seeds := []any{
		0, 1, 2, 3, -1, -2, int64(1 << 52), int64(math.MaxInt64), int64(math.MinInt64), "", "1", nil, true, replyError("ERR x"), replyError("NOSCRIPT x"), replyError("WRONGTYPE x"), replyError(""), replyError("OOM x"),
		[]any{}, []any{0}, []any{0, 10000, "you", 0, int64(1_700_000_000_000_000), "70 70 50", 0}, []any{0, -1, "you", 1, 1, "", 1}, []any{0, int64(math.MaxInt64), "you", 2, 1, "70 0 50", 2}, []any{0, int64(math.MinInt64), "", int64(math.MaxInt64), int64(math.MinInt64), "99999999999999999999", int64(math.MaxInt64)},
		[]any{0, "1", "you", 0, 1, "", 0}, []any{"0", 1, "you", 0, 1, "", 0}, []any{0, int64(9_300_000_000_000), "AAAAAAAAAAAAAAAAAAAAAA:label", 0, 1, "", 0}, []any{0, 1, "you", 1, 1, "", nil}, []any{nil, nil, nil, nil, nil, nil, nil},
		[]any{"", -2, 70, 0, 0}, []any{"me", 10000, 70, 3, 2}, []any{"me", -1, 70, -3, 0}, []any{"me", int64(9_300_000_000_000), 70, int64(math.MaxInt64), 0}, []any{1, 2, 3, 4}, []any{"a", "b", "c", "d"}, []any{nil, nil, nil, nil},
		[]any{-1, int64(1_700_000_000_000_000)}, []any{-2, 1}, []any{-3, 1}, []any{"-1", 1}, []any{-1, int64(math.MinInt64)}, 7, -7,
	}
	for _, s := range seeds {
		w := written(s)
		f.Add(w, w, w, w, w)
		f.Add(written(70), w, w, w, w)
		f.Add(written(70), written(1), w, w, w)
		f.Add(written(70), w, written(20_000), w, w)
	}
	f.Fuzz(func(t *testing.T, acquire, forget, renew, inspect, claim []byte) {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{replies: map[string]any{
				"acquire": shape(&acquire, 2), "forget": shape(&forget, 2), "renew": shape(&renew, 2), "inspect": shape(&inspect, 2), "claim": shape(&claim, 2),
			}}
			l := newLocker(t, s.client(t))
			lock, err := l.TryAcquire(background, "k")
			left, held := refusal(s.replies["acquire"])
			token, _ := s.replies["acquire"].(int64)
			var is *holdfast.HeldError
			switch {
			case token > 0:
				if err != nil || lock.Token() != token {
					t.Fatalf("acquire %v: got %v, %v", token, lock, err)
				}
				s.hold(t, lock)
			case held:
				typed(t, "TryAcquire", err, holdfast.ErrNotAcquired)
				if !errors.As(err, &is) || (left < 0) != (is.TimeLeft == 0) || left >= 0 && is.TimeLeft < time.Millisecond {
					t.Fatalf("held, %d ms left: got %+v", left, is)
				}
			default:
				typed(t, "TryAcquire", err, holdfast.ErrUnavailable)
			}
			s.inspect(t, l)
			s.claim(t, l)
			shutdown(t, l)
		})
	})
}

// refusal is what a well-formed answer that the lock is held says, or ok is false.
func refusal(v any) (left int64, ok bool) {
	r, _ := v.([]any)
	if len(r) != 7 || r[0] != int64(0) {
		return 0, false
	}
	left, ok = r[1].(int64)
	for i, like := range []any{"", int64(0), int64(0), "", int64(0)} {
		switch like.(type) {
		case string:
			_, is := r[2+i].(string)
			ok = ok && is
		case int64:
			_, is := r[2+i].(int64)
			ok = ok && is
		}
	}
	return left, ok
}

// hold does what one does with a lock.
func (s *scripted) hold(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	err := lock.Extend(background, 40*time.Second)
	left, ok := s.replies["renew"].(int64)
	switch {
	case !ok:
		typed(t, "Extend", err, holdfast.ErrUnavailable, holdfast.ErrLost) // it was asked until the lease was over
	case left == 0:
		typed(t, "Extend", err, holdfast.ErrLost)
	case left >= 40_000:
		if err != nil || !lock.Deadline().After(time.Now().Add(30*time.Second)) {
			t.Fatalf("extended by %d ms: %v, deadline %v from now", left, err, time.Until(lock.Deadline()))
		}
	case err != nil:
		typed(t, "Extend", err, holdfast.ErrLost, holdfast.ErrUnavailable)
	}
	time.Sleep(20 * time.Second) // some renewals
	if alive := lock.Err() == nil; alive && !ok {
		t.Fatalf("held without a renewal, replies %v", s.replies["renew"])
	}
	lost := lock.Err()
	if lost != nil {
		typed(t, "Err", lost, holdfast.ErrLost)
	}
	err = lock.Release(background)
	if err == nil && s.replies["forget"] != int64(1) && s.replies["forget"] != int64(2) {
		t.Fatalf("released by %v", s.replies["forget"])
	}
	if err != nil {
		typed(t, "Release", err, holdfast.ErrLost, holdfast.ErrUnavailable)
	}
}

func (s *scripted) inspect(t *testing.T, l *holdfast.Locker) {
	t.Helper()
	state, err := l.Inspect(background, "k")
	r, _ := s.replies["inspect"].([]any)
	var ok [5]bool
	var left, token, waiting int64
	if len(r) == 5 {
		_, ok[0] = r[0].(string)
		left, ok[1] = r[1].(int64)
		token, ok[2] = r[2].(int64)
		waiting, ok[3] = r[3].(int64)
		_, ok[4] = r[4].(int64)
	}
	if ok != [5]bool{true, true, true, true, true} {
		typed(t, "Inspect", err, holdfast.ErrUnavailable)
		return
	}
	if err != nil || state.Held != (left != -2) || state.Token != token || state.Waiting != int(waiting) || (left > 0) != (state.TimeLeft > 0) || state.TimeLeft < 0 {
		t.Fatalf("Inspect of %v: got %+v, %v", r, state, err)
	}
}

func (s *scripted) claim(t *testing.T, l *holdfast.Locker) {
	t.Helper()
	won, err := tick.Claim(background, l, "k", time.Now())
	v := s.replies["claim"]
	if r, _ := v.([]any); len(r) == 2 && (r[0] == int64(-1) || r[0] == int64(-2)) {
		if _, ok := r[1].(int64); ok {
			typed(t, "Claim", err, tick.ErrWindow)
			return
		}
	}
	switch v {
	case int64(0), int64(1), int64(2):
		if err != nil || won != (v == int64(1)) {
			t.Fatalf("Claim, answered %v: got %v, %v", v, won, err)
		}
	default:
		if typed(t, "Claim", err, holdfast.ErrUnavailable); won {
			t.Fatalf("Claim, answered %v: true beside %v", v, err)
		}
	}
}
