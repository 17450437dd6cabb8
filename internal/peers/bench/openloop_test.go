package main

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestOpenLoopKeepsItsRateWhateverTheCallsDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int64
		l := newOpenLoop(time.Second, func(ctx context.Context, n int64) error {
			defer ended.Add(1)
			if n%10 == 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(5 * time.Millisecond)
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		l.offer(ctx, 2000)
		if came := l.came; math.Abs(float64(came)-6000) > 5 {
			t.Errorf("%d came, want 6000", came)
		}
		time.Sleep(2 * time.Second)
		if n := l.inside.Load(); n != 0 || ended.Load() != l.came {
			t.Errorf("%d are still inside, and %d of %d ended", n, ended.Load(), l.came)
		}
		w := window{From: l.began, To: l.began + int64(time.Hour)}
		l.fill(&w)
		if w.Came != int(l.came) || w.Missed != 0 || w.Served+w.Failed != w.Came || w.Failed != w.Came/10 || w.Reason == "" {
			t.Errorf("got %+v", w)
		}
		if w.P50 < 5 || w.P50 > 5.5 || w.P99 < 5 || w.P99 > 5.5 {
			t.Errorf("got %v and %v ms, want 5", w.P50, w.P99)
		}
	})
}

func TestOpenLoopGivesUpWhatItCannotOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newOpenLoop(time.Second, func(ctx context.Context, _ int64) error { return errors.New("no") })
		l.inside.Store(loopMost - 100) // there is room for 100
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		l.offer(ctx, 1e6)
		w := window{From: l.began, To: l.began + int64(time.Hour)}
		l.fill(&w)
		if w.Came == 0 || w.Missed == 0 || w.Came+w.Missed > 10_000 || w.Failed > w.Came {
			t.Errorf("got %+v", w)
		}
	})
}

func TestHistogram(t *testing.T) {
	var h histogram
	if got := h.quantile(0.5); !math.IsNaN(got) {
		t.Errorf("of none: got %v", got)
	}
	for us := 1; us <= 1_000_000; us += 100 {
		h.add(time.Duration(us) * time.Microsecond)
	}
	for q, want := range map[float64]float64{0.1: 100, 0.5: 500, 0.99: 990, 1: 1000} {
		if got := h.quantile(q); got < want || got > want*1.07 {
			t.Errorf("quantile %v: got %v ms, want %v", q, got, want)
		}
	}
	h.add(time.Hour)
	if got := h.quantile(1); got < 30_000 {
		t.Errorf("of an hour: got %v ms", got)
	}
}
