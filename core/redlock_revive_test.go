package holdfast_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
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
			each(ms, forget("k"))
			rival := acquire(t, b.Locker, "k")
			releaseAll(t, rival)
			if err := look(lock); err == nil {
				t.Errorf("%s: held again, after %d, with token %d", name, rival.Token(), lock.Token())
			}
			time.Sleep(time.Minute)
			ms.have(t, "k", 0)
			_ = lock.Release(background)
		})
	}
}

// A rival's attempts that failed leave their later tokens on a minority. That must not keep a lock from its renewals, which
// bring it to those masters, and back to one that forgot it.
func TestRedLockIsRenewedBesideFailedAttempts(t *testing.T) {
	bubbleOf(t, 5, func(t *testing.T, ms masters) {
		a, b := ms.voter(t), ms.voter(t)
		each(ms[3:], (*servertest.Bubble).Down)
		lock := acquire(t, a.Locker, "k")
		each(ms[3:], func(m *servertest.Bubble) { m.Up(); m.Uptime(time.Hour) })
		time.Sleep(time.Millisecond)
		if _, err := b.TryAcquire(background, "k"); err == nil {
			t.Fatal("two holders")
		}
		synctest.Wait()
		ms[0].Restart()
		time.Sleep(6 * time.Second)
		ms.have(t, "k", 5)
		time.Sleep(5 * time.Minute)
		fine(t, lock.Err())
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
			each(s.ms, forget("k")) // it ran out meanwhile
			time.Sleep(ttl/3 + 10*time.Millisecond)
			s.ms.have(t, "k", 0)
			s.available("after the renewal that found out")
		},
		"a renewal that the suspension interrupts": func(t *testing.T, s scene) {
			for _, l := range s.a.links {
				l.Delay(200 * time.Millisecond)
			}
			time.Sleep(ttl/3 + 10*time.Millisecond)
			holdfast.SkewWall(s.a.Locker, time.Minute)
			each(s.ms, forget("k"))
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
			each(s.ms, forget("k"))
			each(s.ms[3:], (*servertest.Bubble).Down)
			rival := acquire(t, s.b.Locker, "k")
			time.Sleep(time.Second) // for which dials are tried again
			each(s.ms[3:], func(m *servertest.Bubble) { m.Up(); m.Uptime(time.Hour) })
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
					wantIs(t, s.lock.Err(), holdfast.ErrLost)
					fine(t, s.b.Do(background, "k", func(ctx context.Context) error {
						time.Sleep(time.Second)
						return holdfast.Err(ctx)
					}, holdfast.WithWait(time.Second)), why)
				}
				play(t, s)
				wantIs(t, s.lock.Release(background), holdfast.ErrLost)
				time.Sleep(time.Minute)
				ms.have(t, "k", 0)
				shutdown(t, s.a.Locker)
				shutdown(t, s.b.Locker)
			})
		})
	}
}
