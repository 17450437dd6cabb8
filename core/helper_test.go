package core_test

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// bubble runs fn in virtual time with a server of its own. What fn leaves behind, a goroutine say, fails it.
func bubble(t *testing.T, fn func(t *testing.T, b *servertest.Bubble)) {
	t.Helper()
	processor.Lock()
	defer processor.Unlock()
	synctest.Test(t, func(t *testing.T) {
		fn(t, servertest.NewBubble(t))
		synctest.Wait() // a grant may be here before the answer to the release
	})
}

// processor is for one bubble at a time, which computes all the time, so that tests on real servers go on beside it.
var processor sync.Mutex

// replica is one process: a Locker with a client and a link of its own.
type replica struct {
	*core.Locker
	rdb  *redis.Client
	link *servertest.Link
}

func newReplica(t *testing.T, b *servertest.Bubble, opts ...core.Option) *replica {
	t.Helper()
	rdb := b.Client()
	return &replica{newLocker(t, rdb, opts...), rdb, b.Link(rdb)}
}

func newLocker(t *testing.T, rdb redis.UniversalClient, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func acquire(t *testing.T, l *core.Locker, key string, opts ...core.CallOption) *core.Lock {
	t.Helper()
	lock, err := l.TryAcquire(context.Background(), key, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return lock
}

func release(t *testing.T, lock *core.Lock) {
	t.Helper()
	if err := lock.Release(context.Background()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func wantIs(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("got error %v, want one that matches %v", err, target)
		}
	}
}

// isDone tells whether Done is closed, without looking at the clock.
func isDone(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// shutdown ends l and fails the test where something stays under way.
func shutdown(t *testing.T, l *core.Locker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if n := core.Under(l); n != 0 {
		t.Errorf("%d calls or holds under way after Shutdown", n)
	}
	if n := core.Scheduled(l); n != 0 {
		t.Errorf("%d holds in the scheduler after Shutdown", n)
	}
}

// seeds are the first n from SEED, which is 0 by default; with HOLDFAST_SOAK they go on for DURATION, and begin at random.
// It stops at the first that fails.
func seeds(t *testing.T, n uint64) iter.Seq[uint64] {
	t.Helper()
	var first uint64
	var until time.Time
	if os.Getenv("HOLDFAST_SOAK") != "" {
		d, err := time.ParseDuration(os.Getenv("DURATION"))
		if err != nil {
			t.Fatal(err)
		}
		n, first, until = 0, rand.Uint64N(1<<40), time.Now().Add(d)
	}
	if s := os.Getenv("SEED"); s != "" {
		first, _ = strconv.ParseUint(s, 10, 64)
	}
	return func(yield func(uint64) bool) {
		ran := uint64(0)
		defer func() { // also at the end of a test that calls Fatal
			t.Logf("%d seeds from %d", ran, first)
			if t.Failed() {
				t.Logf("SEED=%d failed", first+ran)
			}
		}()
		for ; ran < n || time.Now().Before(until); ran++ {
			if !yield(first+ran) || t.Failed() {
				return
			}
		}
	}
}

var background = context.Background()

func tokenText(lock *core.Lock) string { return strconv.FormatInt(lock.Token(), 10) }

func contains(err error, parts ...string) bool {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return true
}
