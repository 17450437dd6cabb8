package holdfast_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// openLoop calls do at rate for d, each time on a goroutine of its own and whatever became of the calls before, as the
// requests of a service come. It returns when all have returned.
func openLoop(rate int, d time.Duration, do func(i int)) {
	var all sync.WaitGroup
	pause := time.Second / time.Duration(rate)
	for i := range int(d / pause) {
		all.Go(func() { do(i) })
		time.Sleep(pause)
	}
	all.Wait()
}

// made returns how many goroutines there are that the library has made.
func made() int {
	text := make([]byte, 64<<20)
	text = text[:runtime.Stack(text, true)]
	return strings.Count(string(text), "created by github.com/holdfast-go/holdfast/core/internal") +
		strings.Count(string(text), "created by github.com/holdfast-go/holdfast/core.")
}

// A Redis that hangs under an open loop costs a goroutine for each connection besides the callers. When it goes on, it
// receives about as many commands as connections were stuck, and not one for each call that failed.
func TestHangUnderAnOpenLoop(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"short leases": time.Second, "long leases": time.Minute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				const pool = 20
				r := newClient(t, b, func(o *redis.Options) { o.PoolSize = pool }, holdfast.WithTTL(ttl))
				warm(t, r)
				b.Pause()
				var failed atomic.Int64
				most := 0
				openLoop(1000, 16*time.Second, func(i int) {
					ctx, cancel := context.WithTimeout(background, 300*time.Millisecond)
					defer cancel()
					begin := time.Now()
					if lock, err := r.Acquire(ctx, fmt.Sprint("k", i)); err == nil {
						release(t, lock)
						return
					}
					failed.Add(1)
					lasted(t, begin, 0, 300*time.Millisecond)
					if i%1000 == 0 {
						most = max(most, made())
					}
				})
				if n := failed.Load(); n != 16000 || most > pool {
					t.Errorf("%d calls failed of 16000, with %d goroutines of the library", n, most)
				}
				b.ResetCommands()
				b.Resume()
				synctest.Wait()
				time.Sleep(3 * time.Second)
				stuck := 16 / 3 * pool // go-redis waits 3 s for an answer
				if n := b.Commands().Total(); n > int64(2*stuck) {
					t.Errorf("%d commands after the hang, want at most two for each of about %d that were stuck", n, stuck)
				}
				for _, key := range b.Redis.Keys() {
					if strings.HasPrefix(key, "k") {
						t.Errorf("left behind: %s", key)
					}
				}
				release(t, acquire(t, r.Locker, "k"))
				shutdown(t, r.Locker)
			})
		})
	}
}

// slow makes the server execute one command at a time, each for d.
func slow(b *servertest.Bubble, d time.Duration) {
	one := make(chan struct{}, 1)
	b.Hook(func(_ *server.Peer, cmd string, _ ...string) bool {
		if strings.HasPrefix(cmd, "EVAL") {
			one <- struct{}{}
			time.Sleep(d)
			<-one
		}
		return false
	})
}

// More calls come than Redis can serve: as many are served as without the others, and none of them late.
func TestOverloadServesWhatIsStillWorthIt(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		slow(b, 4*time.Millisecond)
		offer := func(rate int) (served int64, worst time.Duration) {
			var mu sync.Mutex
			openLoop(rate, 5*time.Second, func(i int) {
				ctx, cancel := context.WithTimeout(background, time.Second)
				defer cancel()
				began := time.Now()
				err := r.Do(ctx, fmt.Sprint("key", i%500, ":", rate), func(context.Context) error { return nil }, holdfast.WithReentryID(fmt.Sprint(i))) // goes in no bundle
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				served, worst = served+1, max(worst, time.Since(began))
			})
			return served, worst
		}
		most, _ := offer(120) // 125 pairs of commands a second are all that it can do
		if most < 570 {
			t.Fatalf("%d calls of 600 served below the capacity", most)
		}
		for _, rate := range []int{250, 500} {
			served, worst := offer(rate)
			if served < 9*most/10 || worst > time.Second {
				t.Errorf("offered %d/s: %d served in 5 s, and %d without overload; the slowest took %v", rate, served, most, worst)
			}
		}
		time.Sleep(time.Minute)
		shutdown(t, r.Locker)
	})
}

// While there is more to do than can be done, the locks that are held are kept.
func TestOverloadLosesNoLock(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		var locks []*holdfast.Lock
		for i := range 20 {
			locks = append(locks, acquire(t, r.Locker, fmt.Sprint("held", i)))
		}
		slow(b, 4*time.Millisecond)
		openLoop(1000, 8*time.Second, func(i int) {
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			if lock, err := r.TryAcquire(ctx, fmt.Sprint("k", i)); err == nil {
				_ = lock.Release(ctx)
			}
		})
		for _, lock := range locks {
			release(t, lock)
		}
	}, holdfast.WithTTL(2*time.Second))
}

// A call that is given up before its command was sent sends nothing: neither the command, nor one that undoes it.
func TestCommandsThatWereTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newClient(t, b, func(o *redis.Options) { o.PoolSize = 4; o.ReadTimeout = -1 })
		holdfast.ByLanes(r.Locker)
		warm(t, r)
		free := stuck(t, r)
		b.ResetCommands()
		under := holdfast.Under(r.Locker)
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
				defer cancel()
				_, err := r.Acquire(ctx, fmt.Sprint("k", i))
				wantIs(t, err, holdfast.ErrUnavailable)
			})
		}
		all.Wait()
		if n := holdfast.Under(r.Locker); n != under || b.Commands().Total() != 0 {
			t.Errorf("%d under way, and before %d; %v", n, under, b.Commands())
		}
		free()
		time.Sleep(time.Minute)
		if n := b.Commands().Total(); n != holdfast.MinLanes {
			t.Errorf("%d commands, want the releases of the %d locks", n, holdfast.MinLanes)
		}
		shutdown(t, r.Locker)
	})
}

// Of more failed calls than a Locker remembers, some are not undone. That is told, and their leases end.
func TestCleanupsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var told reported
		r := newReplica(t, b, holdfast.WithTrace(told.trace()))
		warm(t, r)
		b.Pause()
		holdfast.Undo(r.Locker, holdfast.MostCleanups+500)
		time.Sleep(2 * time.Second)
		if n := told.count("are not undone"); n == 0 {
			t.Errorf("told: %v", told.all())
		}
		time.Sleep(2 * time.Minute) // and what is remembered is given up, when its lease is over
		b.Resume()
		time.Sleep(time.Second)
		if n := b.Commands().Total(); n > 200 {
			t.Errorf("%d commands", n)
		}
		shutdown(t, r.Locker)
	})
}

// An application that uses up the pool of the client neither costs a lock, nor keeps others from being taken. A call that waits
// for replicas needs a connection beside the reserved one, which it leaves to renewals.
func TestServerPoolThatIsUsedUp(t *testing.T) {
	t.Parallel()
	for pool, acks := range map[int]bool{16: false, 8: true} {
		t.Run(fmt.Sprint(pool), func(t *testing.T) {
			t.Parallel()
			rdb := redis.NewClient(&redis.Options{Addr: servertest.Redis(t).Addr(), PoolSize: pool, PoolTimeout: 4 * time.Second})
			defer rdb.Close()
			l := newLocker(t, rdb, holdfast.WithTTL(2*time.Second))
			var locks []*holdfast.Lock
			for i := range 20 {
				locks = append(locks, obtain(t, l, fmt.Sprint("k", i)))
			}
			ctx, cancel := context.WithCancel(background)
			var all sync.WaitGroup
			for i := range 2 * pool {
				all.Go(func() {
					for ctx.Err() == nil {
						_ = rdb.BLPop(ctx, time.Second, fmt.Sprint("list", i)).Err()
					}
				})
			}
			for i := range 3 {
				all.Go(func() {
					for acks && ctx.Err() == nil {
						call, cancel := context.WithTimeout(ctx, 3*time.Second)
						if _, err := l.TryAcquire(call, fmt.Sprint("copied", i), holdfast.WithReplicaAcks(1, time.Second)); err == nil {
							t.Error("acknowledged by a replica that is not there")
						}
						cancel()
					}
				})
			}
			end := time.Now().Add(7 * time.Second)
			for i := 0; time.Now().Before(end); i++ {
				if acks {
					time.Sleep(time.Second)
					continue
				}
				release(t, obtain(t, l, fmt.Sprint("other", i)))
			}
			for _, lock := range locks {
				fine(t, lock.Err())
			}
			cancel()
			all.Wait()
			for _, lock := range locks {
				_ = lock.Release(background)
			}
			shutdown(t, l)
		})
	}
}

// The hooks of a client see commands as go-redis shows them.
func TestHooksSeeStrings(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newReplica(t, b, holdfast.WithTTL(3*time.Second))
		var mu sync.Mutex
		seen := map[string]bool{}
		look := func(cmd redis.Cmder) {
			if !strings.HasPrefix(cmd.Name(), "eval") {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, arg := range cmd.Args() {
				switch arg.(type) {
				case string, int, int64:
				default:
					t.Errorf("argument %d of %s is a %T", i, cmd.Name(), arg)
				}
			}
			if text := cmd.String(); strings.Contains(text, " 0x") {
				t.Errorf("a command reads %q", text)
			}
			seen[kind(argsOf(cmd))] = true
		}
		r.rdb.AddHook(hook{func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			look(cmd)
			return next(ctx, cmd)
		}, func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			for _, cmd := range cmds {
				look(cmd)
			}
			return next(ctx, cmds)
		}})
		for _, opts := range [][]holdfast.CallOption{nil, {holdfast.WithReentryID("id")}, {holdfast.WithLimit(3)}} {
			lock := await(t, r.Locker, "k"+strconv.Itoa(len(opts)), opts...)
			time.Sleep(2 * time.Second) // renewed
			release(t, lock)
		}
		if _, err := r.Inspect(background, "k"); err != nil {
			t.Error(err)
		}
		if _, err := tick.Claim(background, r.Locker, "job", time.Now()); err != nil {
			t.Error(err)
		}
		shutdown(t, r.Locker)
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{"acquire", "forget", "renew", "inspect", "claim"} {
			if !seen[want] {
				t.Errorf("no %s in %v", want, seen)
			}
		}
	})
}

// A reply that makes go-redis panic fails the call and ends no program, whoever runs the command.
func TestReplyThatMakesTheClientPanic(t *testing.T) {
	for _, lanes := range []bool{false, true} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			if lanes {
				holdfast.ByLanes(r.Locker)
			}
			lock := acquire(t, r.Locker, "held", holdfast.WithTTL(time.Second))
			b.Hook(func(c *server.Peer, cmd string, _ ...string) bool {
				if strings.HasPrefix(cmd, "EVAL") {
					c.WriteRaw("*9000000000000000\r\n")
					return true
				}
				return false
			})
			_, err := r.TryAcquire(background, "k")
			wantIs(t, err, holdfast.ErrUnavailable)
			if !contains(err, "panicked") {
				t.Errorf("got %v", err)
			}
			time.Sleep(2 * time.Second)
			wantIs(t, lock.Release(background), holdfast.ErrLost)
			_, err = r.Inspect(background, "k")
			wantIs(t, err, holdfast.ErrUnavailable)
			b.Hook(nil)
			time.Sleep(time.Minute)
			release(t, acquire(t, r.Locker, "k"))
		})
	}
}
