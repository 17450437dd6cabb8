package asynqlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/cronlock"
	"github.com/robfig/cron/v3"
)

// An entry of a Scheduler and a cron job that have one name, and a program's own claim of it, are three things: each has all
// of its ticks.
func TestOneNameInTwoAdapters(t *testing.T) {
	bubble(t, func(s *shop) {
		const n = 20
		l := s.locker()
		var k ticks
		register(t, s.schedule(&k), "invoices", "@every 1s")

		c := cron.New()
		guard := cronlock.New(l, c)
		var ran, own atomic.Int32
		if _, err := guard.AddFunc("@every 1s", "invoices", func(context.Context) error { ran.Add(1); return nil }); err != nil {
			t.Fatal(err)
		}
		c.Start()
		for range n {
			time.Sleep(time.Second)
			if won, err := tick.Claim(context.Background(), l, "invoices", time.Now().Truncate(time.Second)); won && err == nil {
				own.Add(1)
			}
		}
		if err := guard.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if got := len(k.of("enqueued")); got < n-1 || ran.Load() < n-1 || own.Load() != n {
			t.Errorf("of %d ticks, %d were enqueued, cron ran %d, and %d were claimed", n, got, ran.Load(), own.Load())
		}
	})
}

// Without a namespace each, two that claim the ticks of one name get them between them: this is what the test above looks for.
func TestOneNameWithoutANamespace(t *testing.T) {
	bubble(t, func(s *shop) {
		a, b, got := s.locker(), s.locker(), 0
		for range 20 {
			time.Sleep(time.Second)
			for _, l := range []*holdfast.Locker{a, b} {
				if won, err := tick.Claim(context.Background(), l, "invoices", time.Now().Truncate(time.Second)); won && err == nil {
					got++
				}
			}
		}
		if got != 20 {
			t.Errorf("%d of 20 ticks were granted: the trap is gone", got)
		}
	})
}
