package holdfast_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A process that holds a lock with others is killed. Its place, and no more than that, is back a second after its lease.
func TestServerLimitAfterAKill(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("one of %d, waits=%v", n, waits), func(t *testing.T) {
				t.Parallel()
				server := servertest.Redis(t)
				var hs []*holder
				for range n - 1 {
					hs = append(hs, startHolder(t, server, n))
				}
				// The last one's lease is over long after: nobody may wait for that.
				l := newLocker(t, server.Client(), holdfast.WithTTL(2*hang))
				last := obtain(t, l, "k", holdfast.WithLimit(n))
				var lock *holdfast.Lock
				if waits {
					lock = hs[0].followed(t, l, hs[0].Kill, holdfast.WithLimit(n))
				} else {
					hs[0].Kill()
					time.Sleep(holderTTL + time.Second)
					lock = free(t, l, holdfast.WithLimit(n))
				}
				if more, err := l.TryAcquire(background, "k", holdfast.WithLimit(n)); err == nil {
					entered, all := time.Now(), true
					for _, h := range hs[1:] { // on a busy machine one may have lost it
						all = h.countsAfter(t, entered) && all
					}
					if all {
						t.Errorf("%d hold it on the word of %d", n+1, n)
					}
					release(t, more)
				}
				release(t, last)
				release(t, lock)
				shutdown(t, l)
			})
		}
	}
}

// A reader that was killed is not kept alive by the renewals of another.
func TestServerReaderThatIsKilled(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	dies, stays := startHolder(t, server, 0), startHolder(t, server, 0)
	l := newLocker(t, server.Client())
	dies.Kill()
	time.Sleep(holderTTL + time.Second)
	if err := stays.Leave(hang); err != nil {
		t.Fatal(err)
	}
	release(t, free(t, l))
	shutdown(t, l)
}

// A process that holds a lock is stopped for longer than its lease, and another has its place. When it goes on it does not
// count on the lock even once.
func TestServerLimitAfterAStop(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2} {
		t.Run(fmt.Sprint("one of ", limit), func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			h := startHolder(t, server, limit)
			for range limit - 1 {
				startHolder(t, server, limit)
			}
			l := newLocker(t, server.Client(), holdfast.WithTTL(20*time.Second))
			lock := h.followed(t, l, func() {
				if err := h.Pause(); err != nil {
					t.Skip(err)
				}
			}, holdfast.WithLimit(limit))
			entered := time.Now()
			h.Resume()
			if h.countsAfter(t, entered) {
				t.Errorf("it counts on its lock %v after another had its place", time.Duration(h.at.Load()-entered.UnixNano()))
			}
			if lock.Err() != nil {
				t.Error(lock.Err())
			}
			release(t, lock)
			shutdown(t, l)
		})
	}
}

// All holders lose their locks with the data or with the key, learn of it by their next renewal, and make room for
// waiters: as many as these allow.
func TestServerLimitThatIsForgotten(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*redis.Client) error{
		"FLUSHALL": func(rdb *redis.Client) error { return rdb.FlushAll(background).Err() },
		"DEL":      func(rdb *redis.Client) error { return rdb.Del(background, "k").Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 3
			server, three := servertest.Redis(t), holdfast.WithLimit(n)
			rdb := server.Client()
			var ls []*holdfast.Locker
			var locks []*holdfast.Lock
			for range n {
				l := newLocker(t, server.Client(), holdfast.WithTTL(6*time.Second))
				ls, locks = append(ls, l), append(locks, obtain(t, l, "k", three))
			}
			last := locks[n-1].Token()
			in, got := &inside{t: t}, make(chan *holdfast.Lock, n+1)
			for range n + 1 {
				l := newLocker(t, server.Client(), holdfast.WithTTL(20*time.Second))
				ls = append(ls, l)
				wait(t, &replica{Locker: l}, "k", got, three)
			}
			until(t, "all wait", func() bool { return rdb.ZCard(background, lineKey).Val() == n+1 })
			if err := forget(rdb); err != nil {
				t.Fatal(err)
			}
			for range n {
				within(t, "a waiter", func() { locks = append(locks, <-got) })
			}
			for _, lock := range locks[n:] {
				if in.enter(lock); lock.Token() <= last {
					t.Errorf("token %d after %d", lock.Token(), last)
				}
			}
			for _, lock := range locks[:n] {
				within(t, "the loss", func() { <-lock.Context(background).Done() })
				wantIs(t, lock.Err(), holdfast.ErrLost)
				wantIs(t, lock.Release(background), holdfast.ErrLost)
			}
			select {
			case lock := <-got:
				in.enter(lock) // beside n
				t.Error("one more than there were places")
			default:
			}
			for _, lock := range locks[n:] {
				in.leave(lock)
				release(t, lock)
			}
			within(t, "the last", func() { release(t, <-got) })
			for _, l := range ls {
				shutdown(t, l)
			}
		})
	}
}

// free takes a lock that is to be free by now.
func free(t *testing.T, l *holdfast.Locker, opts ...holdfast.CallOption) *holdfast.Lock {
	t.Helper()
	for {
		lock, err := l.TryAcquire(background, "k", opts...)
		if err == nil {
			return lock
		}
		if !errors.Is(err, holdfast.ErrUnavailable) { // which a busy machine may be
			t.Fatal(err)
		}
	}
}

const (
	holderEnv = "HOLDFAST_HOLDER" // set in a process that is a holder: where the server is
	holderTTL = 2 * time.Second
)

// holder is another process that holds k, and says again and again whether it does.
type holder struct {
	*servertest.Child
	at   atomic.Int64 // when it last counted on it, by its own word
	lost atomic.Bool
}

// startHolder starts one, and returns when it holds; 0 is shared.
func startHolder(t *testing.T, server *servertest.Server, limit int) *holder {
	t.Helper()
	h := &holder{}
	var err error
	h.Child, err = servertest.StartChild(fmt.Sprintf("%s=%s %d", holderEnv, server.Addr(), limit), func(r io.Reader) error {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			var at int64
			if _, err := fmt.Sscan(lines.Text(), &at); err != nil {
				h.lost.Store(true)
				return nil
			}
			h.at.Store(at)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Kill)
	until(t, "a process holds", func() bool { return h.at.Load() > 0 })
	return h
}

// countsAfter waits until h has looked after a moment, and tells whether it held then by its own word.
func (h *holder) countsAfter(t *testing.T, moment time.Time) bool {
	t.Helper()
	counts := func() bool { return h.at.Load() > moment.UnixNano() }
	until(t, "a look", func() bool { return counts() || h.lost.Load() })
	return counts()
}

// followed has l wait in line, and returns the lock that it got when stop had ended or stopped h.
func (h *holder) followed(t *testing.T, l *holdfast.Locker, stop func(), opts ...holdfast.CallOption) (lock *holdfast.Lock) {
	t.Helper()
	got := make(chan *holdfast.Lock, 1)
	wait(t, &replica{Locker: l}, "k", got, opts...)
	until(t, "a call waits", func() bool {
		state, err := l.Inspect(background, "k")
		return err == nil && state.Waiting == 1
	})
	stop()
	within(t, "its place", func() { lock = <-got })
	return lock
}

// beHolder is what a holder's process does until its input ends.
func beHolder(orders string) error {
	var addr string
	var limit int
	if _, err := fmt.Sscan(orders, &addr, &limit); err != nil {
		return err
	}
	l, err := holdfast.New(redis.NewClient(&redis.Options{Addr: addr}), holdfast.WithTTL(holderTTL))
	if err != nil {
		return err
	}
	how := holdfast.WithShared()
	if limit > 0 {
		how = holdfast.WithLimit(limit)
	}
	lock, err := l.Acquire(background, "k", how)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	for {
		at := time.Now().UnixNano()
		if lock.Err() != nil {
			fmt.Println("lost")
		} else {
			fmt.Println(at)
		}
		select {
		case <-over:
			return lock.Release(background)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
