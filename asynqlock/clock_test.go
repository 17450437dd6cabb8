package asynqlock_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/asynqlock"
)

// A tick is enqueued when it has come by the clock of Redis, on a replica whose own is ahead too; that is warned of once.
func TestTicksGoByTheClockOfRedis(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	for off, warnings := range map[time.Duration]int{0: 0, 300 * time.Millisecond: 0, 9 * time.Second: 1, -9 * time.Second: 1} {
		var logged bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
		bubble(t, func(s *shop) {
			time.Sleep(30 * time.Second)
			var mu sync.Mutex
			var early []time.Duration
			sch := asynqlock.NewScheduler(s.locker(), asynqlock.Ahead(off), asynqlock.WithTrace(traceTo(func(e event) {
				mu.Lock()
				defer mu.Unlock()
				if e.kind != "enqueued" {
					t.Errorf("got %+v", e)
				}
				early = append(early, time.Until(e.Tick))
			})))
			register(t, sch, "report", "* * * * *")
			s.start(sch)
			defer sch.Shutdown()
			time.Sleep(5 * time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if len(early) != 5 {
				t.Errorf("%v off: %d ticks", off, len(early))
			}
			for _, d := range early {
				if want := min(0, off); d > want || d < want-50*time.Millisecond {
					t.Errorf("%v off: enqueued %v early, want %v", off, d, want)
				}
			}
		})
		if n := strings.Count(logged.String(), "level=WARN"); n != warnings {
			t.Errorf("%v off: logged %s", off, logged.String())
		}
	}
}
