package holdfast_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestAcquireAndReleaseCostTwoCommandsAndARefusalOne(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		release(t, acquire(t, r.Locker, "order:1")) // teaches the server the scripts
		b.ResetCommands()

		lock := acquire(t, r.Locker, "order:1")
		if n := b.Commands().Total(); n != 1 {
			t.Errorf("acquire: got %d commands, want 1", n)
		}
		if _, err := r.TryAcquire(background, "order:1"); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v, want ErrNotAcquired", err)
		}
		if n := b.Commands().Total(); n != 2 {
			t.Errorf("acquire and a refused try: got %d commands, want 2", n)
		}
		release(t, lock)
		if n := b.Commands().Total(); n != 3 {
			t.Errorf("with the release: got %d commands, want 3", n)
		}
		if b.Redis.Exists("order:1") {
			t.Error("the key is still there after Release")
		}
	})
}

func TestAcquireWaitsForTheHolder(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		first := acquire(t, a.Locker, "k")
		begin := time.Now()
		go func() {
			time.Sleep(3 * time.Second)
			release(t, first)
		}()
		second, err := c.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited < 3*time.Second || waited > 3*time.Second+300*time.Millisecond {
			t.Errorf("got the lock after %v, want 3s and at most one pause", waited)
		}
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		release(t, second)
	})
}

func TestWaitEndsWithContextOrWithWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, a.Locker, "k")
		defer release(t, lock)
		cause := func(d time.Duration, f func() error) error {
			t.Helper()
			begin := time.Now()
			err := f()
			if got := time.Since(begin); got != d {
				t.Errorf("returned after %v, want %v", got, d)
			}
			var held *holdfast.HeldError
			if !errors.As(err, &held) || held.Key != "k" {
				t.Errorf("got %v, want a *HeldError for k", err)
			}
			return err
		}

		err := cause(2*time.Second, func() error {
			ctx, cancel := context.WithTimeout(background, 2*time.Second)
			defer cancel()
			_, err := c.Acquire(ctx, "k")
			return err
		})
		wantIs(t, err, holdfast.ErrNotAcquired, context.DeadlineExceeded)

		err = cause(time.Second, func() error {
			ctx, cancel := context.WithCancel(background)
			time.AfterFunc(time.Second, cancel)
			_, err := c.Acquire(ctx, "k")
			return err
		})
		wantIs(t, err, holdfast.ErrNotAcquired, context.Canceled)

		err = cause(700*time.Millisecond, func() error {
			_, err := c.Acquire(background, "k", holdfast.WithWait(700*time.Millisecond))
			return err
		})
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: no context ended", err)
		}
		_ = cause(3*time.Second, func() error { // the last look is at the end, and is waited for
			_, err := c.Acquire(background, "k", holdfast.WithWait(3*time.Second))
			return err
		})
		_ = cause(0, func() error {
			_, err := c.Acquire(background, "k", holdfast.WithWait(0))
			return err
		})
		_ = cause(0, func() error {
			_, err := c.TryAcquire(background, "k")
			return err
		})

		ended, cancel := context.WithCancel(background)
		cancel()
		_, err = c.Acquire(ended, "k")
		wantIs(t, err, holdfast.ErrUnavailable, context.Canceled)
	})
}

func TestSelfDeadlockIsRefusedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		same := newLocker(t, r.rdb)
		other := newReplica(t, b)
		err := r.Do(background, "a", func(ctx context.Context) error {
			return r.Do(ctx, "b", func(ctx context.Context) error {
				if got := holdfast.Held(ctx); len(got) != 2 || got[0].Key() != "b" || got[1].Key() != "a" {
					t.Errorf("Held: got %v, want b, a", got)
				}
				for _, l := range []*holdfast.Locker{r.Locker, same} {
					_, err := l.Acquire(ctx, "a")
					wantIs(t, err, holdfast.ErrSelfDeadlock)
					_, err = l.TryAcquire(ctx, "b")
					wantIs(t, err, holdfast.ErrSelfDeadlock)
				}
				_, err := other.TryAcquire(ctx, "a") // may be another Redis: asks
				wantIs(t, err, holdfast.ErrNotAcquired)
				_, err = r.TryAcquire(background, "a") // not its context: an ordinary rival
				wantIs(t, err, holdfast.ErrNotAcquired)
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestWaitMayBeHuge(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		c := newReplica(t, b)
		time.Sleep(time.Second)
		c.link.Delay(2 * time.Millisecond)
		l, err := c.Acquire(background, "k", holdfast.WithWait(math.MaxInt64))
		if err != nil {
			t.Fatal(err)
		}
		release(t, l)
	})
}

// The wait begins when Redis tells of a holder: one answer that takes longer than the wait does not use it up.
func TestSlowAnswerDoesNotUseUpTheWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		warm(t, c)
		c.link.Delay(60 * time.Millisecond)
		lock := acquire(t, a.Locker, "k")
		time.AfterFunc(70*time.Millisecond, func() { release(t, lock) })
		got, err := c.Acquire(background, "k", holdfast.WithWait(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		release(t, got)
	})
}

// Rule 1 and the record in the fence: whatever becomes of the first acquire, the second one gets the lock
// under the same tenure, with the token that the first was given.
func TestAcquireIsResentUntilAnswered(t *testing.T) {
	for name, fate := range map[string]servertest.Verdict{
		"reply lost":                        servertest.LoseReply,
		"reply lost and connection closed":  servertest.LoseReplyAndClose,
		"request lost":                      servertest.LoseRequest,
		"request lost and connection ended": servertest.LoseRequestAndClose,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newReplica(t, b)
				warm(t, r)
				b.ResetCommands()
				r.link.OnCommand(first("acquire", fate))
				lock, err := r.Acquire(background, "k")
				if err != nil {
					t.Fatal(err)
				}
				if fence, _ := b.Redis.Get("{k}:~fence"); !strings.HasPrefix(fence, tokenText(lock)+" "+tokenText(lock)+" "+tokenText(lock)) {
					t.Errorf("fence %q, want one tenure with token %d alone", fence, lock.Token())
				}
				time.Sleep(10 * time.Minute)
				if err := lock.Err(); err != nil {
					t.Error(err)
				}
				release(t, lock)
				if b.Redis.Exists("k") {
					t.Error("the key is still there")
				}
				shutdown(t, r.Locker)
			})
		})
	}
}

// The tenure resends, go-redis does not: it would send four times, each time unseen.
func TestGoRedisDoesNotResend(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		warm(t, r)
		r.link.OnCommand(func(args []string) servertest.Verdict {
			if kind(args) == "acquire" {
				return servertest.LoseReplyAndClose
			}
			return servertest.Pass
		})
		b.ResetCommands()
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		shutdown(t, r.Locker)
		if n := b.Commands().Total(); n != 4 {
			t.Errorf("%d commands reached the server, want three tries and the clean-up", n)
		}
		if b.Redis.Exists("k") {
			t.Error("the clean-up left the key behind")
		}
	})
}

func TestRestartedServerLearnsTheScriptsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b)
		lock := acquire(t, r.Locker, "k")
		value := holdfast.Owner(lock)
		b.Restart()
		_ = b.Redis.Set("k", value) // persistence kept the lock, not the scripts
		b.Redis.SetTTL("k", 15*time.Second)
		time.Sleep(time.Minute)
		if err := lock.Err(); err != nil {
			t.Errorf("after a restart that kept the data: %v", err)
		}
		release(t, lock)
		b.Restart()
		release(t, acquire(t, r.Locker, "k"))
	})
}

// What one acquire and its release cost on a real server. internal/bench compares.
func BenchmarkAcquireRelease(b *testing.B) {
	server := servertest.Redis(b)
	l, err := holdfast.New(server.Client())
	if err != nil {
		b.Fatal(err)
	}
	for _, goroutines := range []int{1, 8, 64} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(goroutines)
			keys := make(chan string, 1024)
			for i := range 1024 {
				keys <- "k" + strconv.Itoa(i)
			}
			b.RunParallel(func(pb *testing.PB) {
				key := <-keys
				defer func() { keys <- key }()
				for pb.Next() {
					lock, err := l.TryAcquire(background, key)
					if err == nil {
						err = lock.Release(background)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func tokenText(lock *holdfast.Lock) string { return strconv.FormatInt(lock.Token(), 10) }
