package interop

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
)

// Everybody at once on one key: programs of all kinds, several goroutines each, and two Lockers.
func TestAllKindsExcludeEachOther(t *testing.T) {
	t.Parallel()
	const (
		goroutines = 3 // of each kind
		rounds     = 15
	)
	eachServer(t, func(t *testing.T, e *env) {
		var (
			counter int // guarded by the lock under test, and not atomic
			tokens  []int64
			inside  atomic.Int32
			wg      sync.WaitGroup
		)
		section := func() {
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d holders at once", n)
			}
			n := counter
			time.Sleep(100 * time.Microsecond)
			counter = n + 1
			inside.Add(-1)
		}
		work := func(round func()) {
			for range goroutines {
				wg.Go(func() {
					for range rounds {
						round()
					}
				})
			}
		}

		for range 2 {
			l := e.locker(holdfast.WithTTL(e.long), holdfast.WithPolling(time.Millisecond, 5*time.Millisecond))
			work(func() {
				err := l.Do(background, e.key, func(ctx context.Context) error {
					section()
					tokens = append(tokens, holdfast.Held(ctx)[0].Token())
					return nil
				})
				if err != nil {
					t.Errorf("holdfast: %v", err)
				}
			})
		}
		all := rivals()
		for _, r := range all {
			work(func() {
				h, err := r.obtain(background, e.rdb, e.key, e.long)
				for errors.Is(err, peers.ErrHeld) {
					time.Sleep(time.Millisecond + rand.N(4*time.Millisecond))
					h, err = r.obtain(background, e.rdb, e.key, e.long)
				}
				if err != nil {
					t.Errorf("%s: obtain: %v", r.Name, err)
					return
				}
				section()
				if err := h.Release(background); err != nil {
					t.Errorf("%s: release: %v", r.Name, err)
				}
			})
		}
		wg.Wait()

		if want := (2 + len(all)) * goroutines * rounds; counter != want {
			t.Errorf("counter: got %d, want %d: updates were lost", counter, want)
		}
		if want := 2 * goroutines * rounds; len(tokens) != want {
			t.Errorf("got %d tokens, want %d", len(tokens), want)
		}
		if !slices.IsSortedFunc(tokens, func(a, b int64) int {
			if a < b {
				return -1
			}
			return 1 // equal ones are out of order too
		}) {
			t.Errorf("tokens in the order of holding do not rise: %v", tokens)
		}
	})
}
