package holdfast_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// Before its first answer, a Locker does not ask which of several servers has a key; afterwards it does.
func TestCleanupStaysAtItsServer(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		link := b.NewLink()
		rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:6379"}, Dialer: link.Dial, HeartbeatFrequency: 24 * time.Hour, PoolSize: 100})
		defer rdb.Close()
		l := newLocker(t, rdb)
		until := make(chan struct{})
		link.OnCommand(every("acquire", servertest.HoldReply(until)))
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				_, err := l.Acquire(bounded(t, 100*time.Millisecond), fmt.Sprint("k", i))
				wantIs(t, err, holdfast.ErrUnavailable)
			})
		}
		all.Wait()
		close(until)
		synctest.Wait()
		time.Sleep(time.Minute)
		shutdown(t, l)
	})
}

// A grant for nobody is undone, and the cleaner then does whatever else is due, which may ask for the same lock.
func TestStrayGrantBesideReleasesInBackground(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		holder, r := newReplica(t, b), newReplica(t, b)
		to := inboxes(t, b, r)[0]
		grant := nextMessage(r.link)
		lock := acquire(t, holder.Locker, "k")
		c := call(background, r, "k")
		release(t, lock)
		release(t, got(t, c))
		time.Sleep(5 * time.Second)
		var locks []*holdfast.Lock
		for i := range 5000 {
			locks = append(locks, acquire(t, r.Locker, fmt.Sprint("k", i), passing, holdfast.WithTTL(time.Hour)))
		}
		r.link.OnCommand(every("forget", servertest.HoldReply(nil)))
		for _, lk := range locks {
			release(t, lk)
		}
		time.Sleep(5 * time.Second)
		b.Redis.Publish(to, grant())
		synctest.Wait()
		r.link.OnCommand(nil)
		time.Sleep(10 * time.Minute)
		shutdown(t, r.Locker)
		shutdown(t, holder.Locker)
	})
}

// Renewals that no connection was free for end with their locks: they would be sent first, one for each lane and round trip.
func TestNoRenewalOutlivesItsLock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newClient(t, b, func(o *redis.Options) { o.PoolSize = 8 }, holdfast.WithTTL(3*time.Second))
		var locks []*holdfast.Lock
		for i := range 1000 {
			locks = append(locks, acquire(t, r.Locker, fmt.Sprint("k", i)))
		}
		r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequest })
		time.Sleep(10 * time.Second)
		for _, lk := range locks {
			_ = lk.Release(background)
		}
		time.Sleep(20 * time.Second)
		if n := holdfast.Under(r.Locker); n > 0 {
			t.Errorf("%d commands under way 20 s after all locks were released", n)
		}
		shutdown(t, r.Locker)
		r.link.OnCommand(nil)
		time.Sleep(10 * time.Minute)
	})
}

// A command that would have to wait for a connection does so on a lane, and its caller returns with its context.
func TestInlineLeavesACrowdedPoolToLanes(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newClient(t, b, func(o *redis.Options) { o.PoolSize = 8 })
		for range 9 { // not through for 4 s: holds the connection
			release(t, acquire(t, r.Locker, "x"))
			time.Sleep(500 * time.Millisecond)
		}
		var pinned []*redis.Conn
		for range 5 {
			c := r.rdb.Conn()
			_ = c.Ping(background)
			pinned = append(pinned, c)
		}
		time.Sleep(100 * time.Millisecond)
		b.Pause()
		ctx, cancel := context.WithCancel(background)
		time.AfterFunc(100*time.Millisecond, cancel)
		begin := time.Now()
		_, _ = r.TryAcquire(ctx, "k")
		lasted(t, begin, 0, 350*time.Millisecond)
		b.Resume()
		for _, c := range pinned {
			_ = c.Close()
		}
		time.Sleep(time.Minute)
		shutdown(t, r.Locker)
	})
}

// pin takes all connections that are in the pool of rdb, or come back to it, until the function that it returns is called. It
// waits for none in the pool, because go-redis has one supply of timers for all bubbles.
func pin(rdb *redis.Client) (free func()) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		var taken []*redis.Conn
		for {
			if s := rdb.PoolStats(); s.IdleConns > 0 || int(s.TotalConns) < rdb.Options().PoolSize {
				c := rdb.Conn()
				_ = c.Ping(background)
				taken = append(taken, c)
				continue
			}
			select {
			case <-time.After(time.Millisecond):
				continue
			case <-stop:
			}
			for _, c := range taken {
				_ = c.Close()
			}
			return
		}
	})
	synctest.Wait()
	return func() { close(stop); all.Wait() }
}

// The reserved connection is not given away when it was idle for long, or is old, if it would not come back.
func TestReservedConnectionStaysWhileThePoolIsUsedUp(t *testing.T) {
	for name, o := range map[string]struct {
		ttl, life time.Duration
	}{"idle": {2 * time.Minute, 0}, "life": {15 * time.Second, time.Minute}, "neither": {15 * time.Second, 0}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *servertest.Bubble) {
				r := newClient(t, b, func(opt *redis.Options) { opt.PoolSize = 8; opt.ConnMaxLifetime = o.life }, holdfast.WithTTL(o.ttl))
				lock := acquire(t, r.Locker, "k")
				free := pin(r.rdb)
				time.Sleep(5 * time.Minute)
				fine(t, lock.Err())
				free()
				_ = lock.Release(background)
				time.Sleep(time.Minute)
				shutdown(t, r.Locker)
			})
		})
	}
}

// Renewals wait for a reserved connection that hangs no longer than a lease has time for, even if the server was slow before.
func TestReservedConnectionThatIsDead(t *testing.T) {
	for _, slow := range []time.Duration{0, 300 * time.Millisecond} {
		solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
			lock := acquire(t, r.Locker, "k")
			var n atomic.Int64
			r.link.OnCommand(func(args []string) servertest.Verdict {
				if kind(args) != "renew" {
					return servertest.Pass
				}
				switch n := n.Add(1); {
				case n == 1 && slow > 0:
					return delayed(slow)
				case n == 3 || n == 2 && slow == 0: // it is the retry of the first otherwise
					return servertest.LoseRequest
				}
				return servertest.Pass
			})
			time.Sleep(3 * time.Second)
			if err := lock.Err(); err != nil {
				t.Errorf("slow %v: %v after %d renewals", slow, err, n.Load())
			}
			r.link.OnCommand(nil)
			_ = lock.Release(background)
			time.Sleep(time.Minute)
		}, holdfast.WithTTL(time.Second))
	}
}

// A lock that is known to be lost is released by one command, which may leave it to a successor.
func TestReleaseOfALostLockGoesOutOnce(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		r.link.Delay(time.Millisecond)
		lock := acquire(t, r.Locker, "k")
		b.Redis.Del("k")
		time.Sleep(6 * time.Second) // the renewal shows it
		wantIs(t, lock.Err(), holdfast.ErrLost)
		n := countKind(r.link, "forget")
		_ = lock.Release(background)
		time.Sleep(time.Minute)
		if n.Load() != 1 {
			t.Errorf("%d releases", n.Load())
		}
	})
}

// Calls that wait for replicas leave a connection to renewals.
func TestReplicaAcksLeaveALaneToRenewals(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		lagging(t, b, 1, 20*time.Second)
		r := newClient(t, b, func(opt *redis.Options) { opt.PoolSize = 8 }, holdfast.WithTTL(4*time.Second))
		lock := acquire(t, r.Locker, "k")
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				if lk, err := r.Acquire(background, fmt.Sprint("other", i), holdfast.WithTTL(15*time.Second), holdfast.WithReplicaAcks(1, 10*time.Second)); err == nil {
					_ = lk.Release(background)
				}
			})
		}
		time.Sleep(20 * time.Second)
		fine(t, lock.Err())
		all.Wait()
		_ = lock.Release(background)
		time.Sleep(time.Minute)
		shutdown(t, r.Locker)
	})
}

// A forced Shutdown leaves a lease to expire; what undoes it does not go on until then.
func TestCleanupEndsWithAForcedShutdown(t *testing.T) {
	solo(t, func(t *testing.T, b *servertest.Bubble, r *replica) {
		r.link.OnCommand(func([]string) servertest.Verdict { return servertest.LoseRequest })
		ctx := bounded(t, 100*time.Millisecond)
		_, err := r.Acquire(ctx, "k", holdfast.WithTTL(time.Hour))
		wantIs(t, err, holdfast.ErrUnavailable)
		time.Sleep(500 * time.Millisecond)
		if err := r.Shutdown(ctx); err == nil {
			t.Error("no error")
		}
		time.Sleep(2 * time.Minute)
		var n atomic.Int64
		r.link.OnCommand(func([]string) servertest.Verdict { n.Add(1); return servertest.LoseRequest })
		time.Sleep(30 * time.Minute)
		if k, under := n.Load(), holdfast.Under(r.Locker); k > 0 || under > 0 {
			t.Errorf("%d commands later than 2 minutes after Shutdown, %d under way", k, under)
		}
		r.link.OnCommand(nil)
		time.Sleep(2 * time.Hour)
	})
}

// A renewal that was stuck until its lock was lost is not sent: the key would stay for a lease.
func TestNoRenewalAfterALoss(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newClient(t, b, func(o *redis.Options) { o.PoolSize = 4 }, holdfast.WithTTL(3*time.Second))
		holdfast.ByLanes(r.Locker)
		warm(t, r)
		lock := acquire(t, r.Locker, "k")
		began := time.Now()
		time.Sleep(100 * time.Millisecond)
		free := stuck(t, r)
		time.Sleep(time.Until(began.Add(2900 * time.Millisecond)))
		wantIs(t, lock.Err(), holdfast.ErrLost)
		if !b.Redis.Exists("k") {
			t.Fatal("gone already")
		}
		n := countKind(r.link, "renew")
		free()
		time.Sleep(time.Until(began.Add(3200 * time.Millisecond)))
		if b.Redis.Exists("k") || n.Load() > 0 {
			t.Errorf("200 ms after its lease: the key exists %v, %d renewals after the loss", b.Redis.Exists("k"), n.Load())
		}
		_ = lock.Release(background)
		time.Sleep(time.Minute)
		shutdown(t, r.Locker)
	})
}

// A command that would have to dial does so on a lane.
func TestInlineLeavesDialsToLanes(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		r := newClient(t, b, func(o *redis.Options) { o.ConnMaxLifetime = 10 * time.Second })
		acquire(t, r.Locker, "held", holdfast.WithTTL(20*time.Second)) // so that the connection stays
		release(t, acquire(t, r.Locker, "x"))
		time.Sleep(10500 * time.Millisecond)
		synctest.Wait()
		r.link.CutUp()
		time.AfterFunc(20*time.Second, r.link.Heal)
		for range 30 {
			ctx, cancel := context.WithCancel(background)
			time.AfterFunc(100*time.Millisecond, cancel)
			begin := time.Now()
			_, _ = r.TryAcquire(ctx, "k")
			lasted(t, begin, 0, 350*time.Millisecond)
		}
		time.Sleep(time.Minute)
		shutdown(t, r.Locker)
	})
}

// Lockers that share a client reserve a quarter of its connections between them, and the others do without.
func TestLockersLeaveThePoolToOthers(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		rdb := b.Client(func(o *redis.Options) { o.PoolSize = 20 })
		lockers, locks := make([]*holdfast.Locker, 40), make([]*holdfast.Lock, 40)
		for i := range lockers {
			lockers[i] = newLocker(t, rdb)
			locks[i] = acquire(t, lockers[i], fmt.Sprint("k", i))
		}
		if s := rdb.PoolStats(); s.TotalConns-s.IdleConns != 5 {
			t.Errorf("%d of %d connections in use, want 5", s.TotalConns-s.IdleConns, s.TotalConns)
		}
		for i, l := range lockers {
			release(t, locks[i])
			shutdown(t, l)
		}
		synctest.Wait() // a lane gives its connection back after its last answer
		if s := rdb.PoolStats(); s.TotalConns != s.IdleConns {
			t.Errorf("%d of %d connections in use after Shutdown", s.TotalConns-s.IdleConns, s.TotalConns)
		}
	})
}

// A stall of the server does not cost the connection that is kept for locks, while the application has used up the pool and
// would take its place. A call that is alone would otherwise give it up after 250 ms.
func TestServerStallWithAPoolThatIsUsedUp(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 8, PoolTimeout: time.Minute})
	defer rdb.Close()
	l := newLocker(t, rdb, holdfast.WithTTL(4*time.Second))
	lock := obtain(t, l, "held")
	ctx, cancel := context.WithCancel(background)
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = rdb.BLPop(ctx, 2*time.Second, fmt.Sprint("list", i)).Err()
			}
		})
	}
	until(t, "the pool is used up", func() bool { return rdb.PoolStats().IdleConns == 0 && rdb.PoolStats().TotalConns == 8 })
	for i := range 6 {
		other := obtain(t, l, fmt.Sprint("other", i))
		release(t, other)
		server.Pause()
		time.AfterFunc(500*time.Millisecond, server.Resume)
		began := time.Now()
		release(t, obtain(t, l, fmt.Sprint("stalled", i)))
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("a call waited for %v after a stall of 500ms", d)
		}
	}
	fine(t, lock.Err())
	cancel()
	all.Wait()
	release(t, lock)
	shutdown(t, l)
}
