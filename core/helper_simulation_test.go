package holdfast_test

import (
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// seeds are the first n from 1, or those that HOLDFAST_SCHEDULES asks for, or SEED alone; with HOLDFAST_SOAK they go on for
// DURATION, from SEED or at random. It stops at the first that fails.
func seeds(t *testing.T, n uint64) iter.Seq[uint64] {
	t.Helper()
	first := uint64(1)
	var until time.Time
	if s := os.Getenv("SEED"); s != "" {
		first, _ = strconv.ParseUint(s, 10, 64)
		n = 1
	}
	if s := os.Getenv("HOLDFAST_SCHEDULES"); s != "" {
		n, _ = strconv.ParseUint(s, 10, 64)
	}
	if os.Getenv("HOLDFAST_SOAK") != "" {
		d, err := time.ParseDuration(os.Getenv("DURATION"))
		must(t, err)
		if n, until = 0, time.Now().Add(d); os.Getenv("SEED") == "" {
			first = rand.Uint64N(1 << 40)
		}
	}
	return func(yield func(uint64) bool) {
		ran := uint64(0)
		defer func() { // also at the end of a test that calls Fatal
			t.Logf("%d seeds from %d", ran, first)
			if t.Failed() {
				t.Logf("SEED=%d failed, or one before it that ran beside it", first+ran)
			}
		}()
		for ; ran < n || time.Now().Before(until); ran++ {
			if !yield(first+ran) || t.Failed() {
				return
			}
		}
	}
}

// traced holds what the scripts wrote about themselves against their specification, in a build that has them write, see
// protocol_traced_test.go. Otherwise it is nil.
var traced func(t *testing.T, b *servertest.Bubble)

// semaphore is a mutex that a goroutine of a bubble may wait for: its time goes on.
type semaphore chan struct{}

func (m semaphore) Lock()   { m <- struct{}{} }
func (m semaphore) Unlock() { <-m }
