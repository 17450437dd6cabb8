package holdfast_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// A machine is suspended under a lock, which runs out; a rival has it meanwhile and is through with it when the machine
// goes on. Nothing of the first hold may come back.
func TestRedLockSuspendedHolderIsNotRevived(t *testing.T) {
	for name, look := range map[string]func(*holdfast.Lock) error{
		"by a look":       (*holdfast.Lock).Err,
		"by an extension": func(l *holdfast.Lock) error { return l.Extend(background, 10*time.Second) },
		"by a renewal":    func(l *holdfast.Lock) error { time.Sleep(10 * time.Second); return l.Err() },
	} {
		bubbleOf(t, 5, func(t *testing.T, ms masters) {
			a, b := ms.voter(t), ms.voter(t)
			lock := acquire(t, a.Locker, "k")
			synctest.Wait()
			holdfast.SkewWall(a.Locker, time.Minute)
			for _, m := range ms {
				m.Redis.Del("k")
			}
			rival := acquire(t, b.Locker, "k")
			releaseAll(t, rival)
			if err := look(lock); err == nil {
				t.Errorf("%s: held again, after %d, with token %d", name, rival.Token(), lock.Token())
			}
			time.Sleep(time.Minute)
			if n := ms.having("k"); n != 0 {
				t.Errorf("%s: on %d masters", name, n)
			}
			_ = lock.Release(background)
		})
	}
}

// A rival's attempts that failed leave their tokens on a minority: that must not keep a lock from its renewals.
func TestRedLockIsRenewedBesideFailedAttempts(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		ms[3].Down()
		ms[4].Down()
		lock := acquire(t, a.Locker, "k")
		for _, m := range ms[3:] {
			m.Up()
			m.Uptime(time.Hour)
		}
		if _, err := b.TryAcquire(background, "k"); err == nil {
			t.Fatal("two holders")
		}
		synctest.Wait()
		ms[0].Restart() // and forgets; what it had comes back with the next renewal
		time.Sleep(6 * time.Second)
		if !ms[0].Redis.Exists("k") {
			t.Error("the lock did not come back")
		}
		time.Sleep(5 * time.Minute)
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
		releaseAll(t, lock)
	})
}

// A rival that asks before the answers of all masters are in leaves a later token on a minority. The lock comes to those
// all the same, with the next renewal.
func TestRedLockComesToMastersThatARivalWasOn(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		ms[3].Down()
		ms[4].Down()
		lock := acquire(t, a.Locker, "k")
		for _, m := range ms[3:] {
			m.Up()
			m.Uptime(time.Hour)
		}
		time.Sleep(time.Millisecond)
		if _, err := b.TryAcquire(background, "k"); err == nil {
			t.Fatal("two holders")
		}
		time.Sleep(6 * time.Second)
		if n := ms.having("k"); n != 5 {
			t.Errorf("on %d masters, want 5", n)
		}
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
		releaseAll(t, lock)
	})
}

// Nothing brings a lock back that its holder has lost, though the handler goes on and has not released it: a rival is
// not refused for another lease.
func TestRedLockIsNotBroughtBackForALostHold(t *testing.T) {
	const ttl = 15 * time.Second
	type scene struct {
		ms        masters
		a, b      *voter
		lock      *holdfast.Lock
		available func(why string) // to b, within a second
	}
	for name, play := range map[string]func(*testing.T, scene){
		"a renewal after a suspension": func(t *testing.T, s scene) {
			holdfast.SkewWall(s.a.Locker, time.Minute)
			for _, m := range s.ms {
				m.Redis.Del("k") // it ran out meanwhile
			}
			time.Sleep(ttl/3 + 10*time.Millisecond)
			if n := s.ms.having("k"); n != 0 {
				t.Errorf("the renewal that found out brought it back on %d masters", n)
			}
			s.available("after the renewal that found out")
		},
		"a renewal that the suspension interrupts": func(t *testing.T, s scene) {
			for _, l := range s.a.links {
				l.Delay(200 * time.Millisecond)
			}
			time.Sleep(ttl/3 + 10*time.Millisecond)
			holdfast.SkewWall(s.a.Locker, time.Minute)
			for _, m := range s.ms {
				m.Redis.Del("k")
			}
			time.Sleep(2 * time.Second)
			s.available("after the renewal that arrived late")
		},
		"renewals that arrive late": func(t *testing.T, s scene) {
			for _, l := range s.a.links {
				l.CutUp()
			}
			time.Sleep(ttl + time.Second)
			for _, l := range s.a.links {
				l.Heal()
			}
			time.Sleep(time.Millisecond)
			s.available("after the cut")
		},
		"most have gone to a rival": func(t *testing.T, s scene) {
			time.Sleep(time.Second) // or the rival's renewal would be the first
			for i, m := range s.ms {
				m.Redis.Del("k")
				if i > 2 {
					m.Down()
				}
			}
			rival := acquire(t, s.b.Locker, "k")
			time.Sleep(time.Second) // for which dials are tried again
			for _, m := range s.ms[3:] {
				m.Up()
				m.Uptime(time.Hour)
			}
			time.Sleep(ttl/3 - 3*time.Second/2)
			releaseAll(t, rival)
			s.ms[0].Down()
			s.available("when the rival is through, of four masters")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubbleOf(t, 5, func(t *testing.T, ms masters) {
				s := scene{ms: ms, a: ms.voter(t, holdfast.WithTTL(ttl)), b: ms.voter(t, holdfast.WithTTL(ttl))}
				releaseAll(t, acquire(t, s.a.Locker, "k"))
				s.lock = acquire(t, s.a.Locker, "k")
				synctest.Wait()
				s.available = func(why string) {
					t.Helper()
					lost := s.lock.Err()
					wantIs(t, lost, holdfast.ErrLost)
					lock, err := s.b.Acquire(background, "k", holdfast.WithWait(time.Second))
					if err != nil {
						t.Errorf("%s: %v", why, err)
						return
					}
					time.Sleep(time.Second)
					if err := lock.Err(); err != nil {
						t.Error(err)
					}
					release(t, lock)
				}
				play(t, s)
				wantIs(t, s.lock.Release(background), holdfast.ErrLost)
				time.Sleep(time.Minute)
				if n := ms.having("k"); n != 0 {
					t.Errorf("on %d masters", n)
				}
				shutdown(t, s.a.Locker)
				shutdown(t, s.b.Locker)
			})
		})
	}
}
