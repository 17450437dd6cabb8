package holdfast_test

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

func TestAcquireAndReleaseCostTwoCommandsAndARefusalOne(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		b.ResetCommands()
		commands := func(want int64, after string) {
			t.Helper()
			if n := b.Commands().Total(); n != want {
				t.Errorf("%s: got %d commands, want %d", after, n, want)
			}
		}
		lock := acquire(t, r.Locker, "k")
		commands(1, "acquire")
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrNotAcquired)
		commands(2, "acquire and a refused try")
		release(t, lock)
		commands(3, "with the release")
		unheld(t, b, "k")
	})
}

func TestWaitEndsWithContextOrWithWait(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		a, c := newReplica(t, b), newReplica(t, b)
		lock := acquire(t, a.Locker, "k")
		for _, test := range []struct {
			wait, deadline, cancel, took time.Duration // wait of -1: none
			also                         error
		}{
			{-1, 2 * time.Second, time.Minute, 2 * time.Second, context.DeadlineExceeded},
			{-1, time.Minute, time.Second, time.Second, context.Canceled},
			{700 * time.Millisecond, time.Minute, time.Minute, 700 * time.Millisecond, nil},
			{3 * time.Second, time.Minute, time.Minute, 3 * time.Second, nil}, // the last look is at the end, and is waited for
			{0, time.Minute, time.Minute, 0, nil},
		} {
			ctx, cancel := context.WithTimeout(background, test.deadline)
			time.AfterFunc(test.cancel, cancel)
			var opts []holdfast.CallOption
			if test.wait >= 0 {
				opts = append(opts, holdfast.WithWait(test.wait))
			}
			begin := time.Now()
			_, err := c.Acquire(ctx, "k", opts...)
			lasted(t, begin, test.took)
			var held *holdfast.HeldError
			if !errors.As(err, &held) || held.Key != "k" {
				t.Errorf("got %v, want a *HeldError for k", err)
			}
			wantIs(t, err, holdfast.ErrNotAcquired)
			for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
				if errors.Is(err, ended) != (ended == test.also) {
					t.Errorf("got %v, want %v besides", err, test.also)
				}
			}
			cancel()
			_, err = c.Acquire(ctx, "k")
			if test.also != nil {
				wantIs(t, err, holdfast.ErrUnavailable, test.also)
			}
		}
		release(t, lock)
	})
}

func TestSelfDeadlockIsRefusedAtOnce(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
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
		fine(t, err)
	})
}

// The wait begins when Redis tells of a holder: one answer that takes longer than the wait does not use it up. A wait may be
// huge.
func TestSlowAnswerDoesNotUseUpTheWait(t *testing.T) {
	for _, wait := range []time.Duration{100 * time.Millisecond, math.MaxInt64} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			r.link.Delay(60 * time.Millisecond)
			lock := acquire(t, newReplica(t, b).Locker, "k")
			time.AfterFunc(70*time.Millisecond, func() { release(t, lock) })
			release(t, await(t, r.Locker, "k", holdfast.WithWait(wait)))
		})
	}
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
			solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
				r.link.OnCommand(first("acquire", fate))
				lock := await(t, r.Locker, "k")
				if fence, _ := b.Redis.Get("{k}:~fence"); !strings.HasPrefix(fence, strings.Repeat(tokenText(lock)+" ", 2)+tokenText(lock)) {
					t.Errorf("fence %q, want one tenure with token %d alone", fence, lock.Token())
				}
				time.Sleep(10 * time.Minute)
				release(t, lock)
				unheld(t, b, "k")
			})
		})
	}
}

// The tenure resends, go-redis does not: it would send four times, each time unseen.
func TestGoRedisDoesNotResend(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		r.link.OnCommand(every("acquire", servertest.LoseReplyAndClose))
		b.ResetCommands()
		_, err := r.TryAcquire(background, "k")
		wantIs(t, err, holdfast.ErrUnavailable)
		shutdown(t, r.Locker)
		sent(t, b, 4)
		unheld(t, b, "k")
	})
}

func TestRestartedServerLearnsTheScriptsAgain(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		lock := acquire(t, r.Locker, "k")
		value := holdfast.Owner(lock)
		b.Restart()
		_ = b.Redis.Set("k", value) // persistence kept the lock, not the scripts
		b.Redis.SetTTL("k", 15*time.Second)
		time.Sleep(time.Minute)
		fine(t, lock.Err(), "after a restart that kept the data")
		release(t, lock)
		b.Restart()
		release(t, acquire(t, r.Locker, "k"))
	})
}

func tokenText(lock *holdfast.Lock) string { return strconv.FormatInt(lock.Token(), 10) }

// A refusal needs the label of the holder, and carries no more of a value that is longer: anybody can set a key, to megabytes.
// Redis would need longer to pass that to a script than to send it.
func TestRefusalTakesNoMoreOfAValueThanALabel(t *testing.T) {
	const id = "AAAAAAAAAAAAAAAAAAAAAA:" // a random part, as ours are
	longest := strings.Repeat("l", 64)
	tries := func(opts ...holdfast.CallOption) func(*testing.T, *holdfast.Locker) string {
		return func(t *testing.T, l *holdfast.Locker) string {
			_, err := l.Acquire(background, "k", append(opts, holdfast.WithWait(0))...)
			held := refused(t, err)
			return held.Label
		}
	}
	inspects := func(t *testing.T, l *holdfast.Locker) string { return inspect(t, l, "k").Label }
	check := func(t *testing.T, bs []*servertest.Bubble, ask func(*testing.T, *holdfast.Locker) string) {
		var read atomic.Int64
		var clients []*redis.Client
		for _, b := range bs {
			clients = append(clients, b.Client(func(o *redis.Options) { o.Dialer = counted(o.Dialer, &read) }))
		}
		l := newLocker(t, clients[0])
		if len(clients) > 1 {
			l = quorum(t, clients)
		}
		for _, b := range bs {
			b.Hook(func(_ *server.Peer, cmd string, args ...string) bool {
				if reads := []string{"GET", "MGET", "GETEX"}; slices.Contains(reads, cmd) && slices.Contains(args, "k") {
					t.Errorf("%s reads all of the value", cmd)
				}
				return false
			})
			defer b.Hook(nil)
		}
		took := func(value, label string) int64 {
			for _, b := range bs {
				_ = b.Redis.Set("k", value)
				b.Redis.SetTTL("k", time.Hour)
			}
			_ = ask(t, l) // the scripts are known, and the connections are there
			synctest.Wait()
			before := read.Load()
			if got := ask(t, l); got != label {
				t.Errorf("got the label %q, want %q", got, label)
			}
			synctest.Wait()
			return read.Load() - before
		}
		whole, over, huge := took(id+longest, longest), took(id+longest+"l", ""), took(id+strings.Repeat("l", 1<<20), "")
		_, err := l.Acquire(background, "k", holdfast.WithWait(10*time.Millisecond)) // in line, which it leaves again
		wantIs(t, err, holdfast.ErrNotAcquired)
		time.Sleep(time.Second)
		if per := int64(len(bs)); over != whole+per || huge != over {
			t.Errorf("read %d bytes for a value of 1 MiB, %d for the longest of ours, %d for a byte more", huge, whole, over)
		}
	}
	for name, ask := range map[string]func(*testing.T, *holdfast.Locker) string{
		"try":           tries(),
		"limit":         tries(holdfast.WithLimit(3)),
		"re-entry id":   tries(holdfast.WithReentryID("job")),
		"Inspect":       inspects,
		"several: try":  tries(),
		"several: asks": inspects,
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "several") {
				bubbleOf(t, 3, func(t *testing.T, ms masters) { check(t, ms, ask) })
			} else {
				bubble(t, func(t *testing.T, b *servertest.Bubble) { check(t, []*servertest.Bubble{b}, ask) })
			}
		})
	}
}

// counted adds to read what connections of dial read.
func counted(dial func(ctx context.Context, network, addr string) (net.Conn, error), read *atomic.Int64) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &countedConn{c, read}, err
	}
}

type countedConn struct {
	net.Conn
	read *atomic.Int64
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}
