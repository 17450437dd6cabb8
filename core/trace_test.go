package holdfast_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func TestTraceTellsTheStoryOfALock(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		var mu sync.Mutex
		var log strings.Builder
		r := newReplica(t, b, holdfast.WithLabel("api-1"), holdfast.WithTrace(holdfast.LogTrace(slog.New(slog.NewTextHandler(&locked{w: &log, mu: &mu},
			&slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey || a.Key == "token" {
					return slog.Attr{}
				}
				return a
			}})))))
		c := newReplica(t, b, holdfast.WithLabel("api-2"))
		first := acquire(t, c.Locker, "k")
		time.AfterFunc(time.Second, func() { release(t, first) })
		lock, err := r.Acquire(background, "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Second + time.Millisecond)
		release(t, lock)
		lost := acquire(t, r.Locker, "lost")
		b.Redis.Del("lost")
		time.Sleep(5*time.Second + time.Millisecond)
		_ = lost.Release(background)
		time.Sleep(time.Second)
		r.link.Refuse(errors.New("refused"))
		r.link.Reset()
		_, _ = r.TryAcquire(background, "down")

		mu.Lock()
		defer mu.Unlock()
		story := []string{
			`level=DEBUG msg="holdfast: waiting" key=k label=api-2 left=15s`,
			`level=DEBUG msg="holdfast: acquired" key=k label=api-1 elapsed=1`,
			`level=DEBUG msg="holdfast: renewed" key=k left=1`,
			`level=DEBUG msg="holdfast: released" key=k elapsed=5`,
			`level=WARN msg="holdfast: lost" key=lost elapsed=`,
			`level=WARN msg="holdfast: released" key=lost elapsed=5.001s err="holdfast: hold`,
			`level=WARN msg="holdfast: redis error" key=`,
		}
		rest := log.String()
		for _, line := range story {
			i := strings.Index(rest, line)
			if i < 0 {
				t.Fatalf("no %q in\n%s", line, log.String())
			}
			rest = rest[i:]
		}
	})
}

// An outage is one warning for each node, however many renewals it costs, and so is the next one.
func TestLogTraceInAnOutage(t *testing.T) {
	logger := func() (*strings.Builder, holdfast.Option) {
		var mu sync.Mutex
		var log strings.Builder
		return &log, holdfast.WithTrace(holdfast.LogTrace(slog.New(slog.NewTextHandler(&locked{w: &log, mu: &mu}, nil))))
	}
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		log, option := logger()
		r := newReplica(t, b, option, holdfast.WithTTL(time.Minute))
		var locks []*holdfast.Lock
		for i := range 20 {
			locks = append(locks, acquire(t, r.Locker, fmt.Sprint("k", i)))
		}
		for outage := 1; outage <= 2; outage++ {
			r.link.Refuse(errors.New("refused"))
			r.link.Reset()
			time.Sleep(30 * time.Second)
			r.link.Refuse(nil)
			time.Sleep(2 * time.Minute)
			if n := strings.Count(log.String(), "redis error"); n != outage {
				t.Errorf("%d warnings in %d outages:\n%s", n, outage, log.String())
			}
		}
		for _, lock := range locks {
			release(t, lock)
		}
	})
	bubbleOf(t, 3, func(t *testing.T, ms masters) {
		log, option := logger()
		v := ms.voter(t, option, holdfast.WithQuarantine(0))
		for i := range 2 {
			v.links[i].Refuse(errors.New("refused"))
			v.links[i].Reset()
		}
		for i := range 5 {
			_, _ = v.TryAcquire(background, fmt.Sprint("k", i))
		}
		for i := range 2 {
			if n := strings.Count(log.String(), "node="+ms[i].Client().Options().Addr); n != 1 {
				t.Errorf("%d warnings of master %d:\n%s", n, i, log.String())
			}
		}
	})
}

// Without a logger it is the default one, as of the moment of the event.
func TestLogTraceWithoutALogger(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		trace := holdfast.LogTrace(nil)
		var out strings.Builder
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		defer slog.SetDefault(before)
		release(t, acquire(t, newReplica(t, b, holdfast.WithTrace(trace)).Locker, "k"))
		if !strings.Contains(out.String(), "holdfast: acquired") {
			t.Errorf("got %q", out.String())
		}
	})
}

type locked struct {
	mu *sync.Mutex
	w  *strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
