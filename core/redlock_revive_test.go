package core_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
)

// A machine is suspended under a lock, which runs out; a rival has it meanwhile and is through with it when the machine
// goes on. Nothing of the first hold may come back.
func TestRedLockSuspendedHolderIsNotRevived(t *testing.T) {
	for name, look := range map[string]func(*core.Lock) error{
		"by a look":       (*core.Lock).Err,
		"by an extension": func(l *core.Lock) error { return l.Extend(background, 10*time.Second) },
		"by a renewal":    func(l *core.Lock) error { time.Sleep(10 * time.Second); return l.Err() },
	} {
		bubbleOf(t, 5, func(t *testing.T, ms masters) {
			a, b := ms.voter(t), ms.voter(t)
			lock := acquire(t, a.Locker, "k")
			synctest.Wait()
			core.SkewWall(a.Locker, time.Minute)
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
