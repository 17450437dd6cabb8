package interop

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
)

func TestForeignReleaseAndRefreshLeaveOursAlone(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		h := e.obtain(r, e.long)
		if err := e.rdb.Del(background, e.key).Err(); err != nil {
			t.Fatal(err)
		}
		lock := e.acquire(e.locker(), holdfast.WithTTL(e.long/2))
		before := e.stored()
		if err := h.Extend(background, e.long); !errors.Is(err, peers.ErrNotHeld) {
			t.Errorf("%s: refresh: got %v, want ErrNotHeld", r.Name, err)
		}
		if err := h.Release(background); !errors.Is(err, peers.ErrNotHeld) {
			t.Errorf("%s: release: got %v, want ErrNotHeld", r.Name, err)
		}
		e.wantUntouched(before)
		if err := lock.Err(); err != nil {
			t.Errorf("got %v, want our lock held", err)
		}
		e.release(lock)
	})
}

func TestOurReleaseAndExtendLeaveTheirsAlone(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		for _, extends := range []bool{false, true} {
			l := e.locker()
			lock := e.acquire(l)
			h := e.take(r)
			before := e.stored()
			if extends {
				if err := lock.Extend(background, 2*e.long); !errors.Is(err, holdfast.ErrLost) {
					t.Errorf("Extend: got %v, want ErrLost", err)
				}
			}
			if err := lock.Release(background); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("Release: got %v, want ErrLost", err)
			}
			e.shutdown(l) // what goes on in the background is through
			e.wantUntouched(before)
			if err := h.Release(background); err != nil {
				t.Errorf("%s: release: %v", r.Name, err)
			}
		}
	})
}

func TestOurRenewalNoticesAForeignOwner(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		l := e.locker()
		ttl := 2 * e.short
		lock := e.acquire(l, holdfast.WithTTL(ttl))
		h := e.take(r)
		before := e.stored()
		select {
		case <-lock.Context(background).Done():
		case <-time.After(ttl):
			t.Error("the lock's context is live a whole lease after the key went to another owner")
		}
		if err := lock.Err(); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}
		if err := lock.Release(background); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Release: got %v, want ErrLost", err)
		}
		e.shutdown(l)
		e.wantUntouched(before)
		if err := h.Release(background); err != nil {
			t.Errorf("%s: release: %v", r.Name, err)
		}
	})
}

func TestTokensRiseAcrossForeignHolders(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		l := e.locker()
		last := int64(0)
		rise := func(lock *holdfast.Lock) {
			t.Helper()
			if lock.Token() <= last {
				t.Errorf("token: got %d after %d", lock.Token(), last)
			}
			last = lock.Token()
		}
		for range 3 {
			lock := e.acquire(l) // released, and the rival in between
			rise(lock)
			e.release(lock)
			if err := e.obtain(r, e.long).Release(background); err != nil {
				t.Fatalf("%s: release: %v", r.Name, err)
			}

			lock = e.acquire(l) // lost to the rival
			rise(lock)
			h := e.take(r)
			if err := lock.Release(background); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("Release: got %v, want ErrLost", err)
			}
			if err := h.Release(background); err != nil {
				t.Fatalf("%s: release: %v", r.Name, err)
			}
		}
	})
}

func TestInspectOfAForeignHolder(t *testing.T) {
	eachRival(t, func(t *testing.T, e *env, r rival) {
		l := e.locker(holdfast.WithLabel("api-1"))
		inspect := func(held bool, token int64) holdfast.State {
			t.Helper()
			state, err := l.Inspect(background, e.key)
			if err != nil {
				t.Fatalf("Inspect: %v", err)
			}
			holders := 0
			if held {
				holders = 1
			}
			want := holdfast.State{Key: e.key, Held: held, TimeLeft: state.TimeLeft, Holders: holders, Limit: holders, Token: token}
			if state != want {
				t.Errorf("Inspect: got %+v, want %+v", state, want)
			}
			return state
		}
		since := time.Now()
		h := e.obtain(r, e.long)
		e.wantLeft(inspect(true, 0).TimeLeft, e.long, since) // no token: nothing of ours was ever there
		if err := h.Release(background); err != nil {
			t.Fatalf("%s: release: %v", r.Name, err)
		}
		if left := inspect(false, 0).TimeLeft; left != 0 {
			t.Errorf("time left of a free lock: got %v, want 0", left)
		}

		lock := e.acquire(l)
		e.release(lock)
		since = time.Now()
		h = e.obtain(r, e.long)
		e.wantLeft(inspect(true, lock.Token()).TimeLeft, e.long, since)
		if err := h.Release(background); err != nil {
			t.Errorf("%s: release: %v", r.Name, err)
		}
	})
}
