package holdfast_test

import (
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

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

// semaphore is a mutex that a goroutine of a bubble may wait for: its time goes on.
type semaphore chan struct{}

func (m semaphore) Lock()   { m <- struct{}{} }
func (m semaphore) Unlock() { <-m }
