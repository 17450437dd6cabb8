package holdfast_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

// 8 processes with 8 goroutines each, that go on taking one lock, and 64 that stand in line in Redis, each by itself.
func TestServerRedLockContention(t *testing.T) {
	t.Parallel()
	for name, processes := range map[string]int{"eight processes": 8, "no hand-over": 1} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, 5)
			opts := []holdfast.Option{holdfast.WithTTL(time.Minute), redlock.WithNodeTimeout(20 * time.Second)} // on a busy machine an answer takes its time
			if processes == 1 {
				opts = append(opts, holdfast.WithLocalHandover(0, 0))
			}
			var ls []*holdfast.Locker
			for range processes {
				ls = append(ls, f.locker(t, opts...))
			}
			workers := slices.Repeat(ls, 64/processes)
			takeTurns(t, workers, time.Now()) // the connections, and the scripts
			each(f, func(s *servertest.Server) { s.ResetStats(t) })
			turns := takeTurns(t, workers, time.Now().Add(2*time.Second))
			slices.SortFunc(turns, func(a, b turn) int { return a.from.Compare(b.from) })
			handovers, holds := 0, map[int]int{}
			for i, s := range turns {
				if holds[s.worker]++; i == 0 {
					continue
				}
				before := turns[i-1]
				if s.from.Before(before.to) || s.token <= before.token {
					t.Errorf("token %d from %v on, beside token %d until %v", s.token, s.from, before.token, before.to)
				}
				if processes == 1 || s.worker%processes != before.worker%processes {
					handovers++
				}
			}
			if len(holds) != len(workers) {
				t.Errorf("%d of %d had the lock", len(holds), len(workers))
			}
			c := f[0].CommandStats(t)
			per := float64(c["evalsha"]+c["eval"]) / float64(max(handovers, 1))
			t.Logf("%d holds, %d hand-overs, %.1f scripts on a master for each", len(turns), handovers, per)
			if per > 10 {
				t.Errorf("%.1f commands for each hand-over, want at most 10", per)
			}
			for _, l := range ls {
				shutdown(t, l)
			}
			f.empty(t, "k")
		})
	}
}

// turn is one hold.
type turn struct {
	worker   int
	token    int64
	from, to time.Time
}

// takeTurns has one goroutine for each of ls take the lock until till, and each at least once.
func takeTurns(t *testing.T, ls []*holdfast.Locker, till time.Time) (turns []turn) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for w, l := range ls {
		all.Go(func() {
			for again := true; again; again = time.Now().Before(till) {
				lock, err := l.Acquire(background, "k")
				if err != nil {
					t.Error(err)
					return
				}
				s := turn{worker: w, token: lock.Token(), from: time.Now()}
				if s.to = time.Now(); lock.Err() != nil {
					s.to = s.from
				}
				mu.Lock()
				turns = append(turns, s)
				mu.Unlock()
				fine(t, lock.Release(background))
			}
		})
	}
	all.Wait()
	return turns
}
