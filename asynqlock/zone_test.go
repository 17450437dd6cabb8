package asynqlock_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/asynqlock"
	"github.com/holdfast-go/holdfast/core"
)

// Replicas that were started at different times agree about the ticks of a zone with summer time, and
// of one that the spec names.
func TestTicksOfAZone(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	for _, want := range []struct {
		month time.Month // 16 days from the 20th
		spec  string
		ticks int
		last  string // in UTC
	}{
		{time.March, "30 1 * * *", 16, "23:30:00"},
		{time.March, "30 2 * * *", 15, "00:30:00"},                          // there is no such time on 26 March
		{time.March, "CRON_TZ=America/New_York 0 12 * * *", 16, "16:00:00"}, // summer since 2 April there
		{time.March, "@every 24h", 16, "00:00:00"},
		{time.October, "30 1 * * *", 16, "00:30:00"},
		{time.October, "30 2 * * *", 17, "01:30:00"}, // comes twice on 29 October
		{time.October, "@every 24h", 16, "00:00:00"},
	} {
		t.Run(want.month.String()+" "+want.spec, func(t *testing.T) {
			bubble(t, func(s *shop) {
				time.Sleep(time.Until(time.Date(2000, want.month, 20, 12, 0, 0, 0, berlin)))
				var k ticks
				for i := range 3 {
					sch := s.schedule(&k, asynqlock.WithLocation(berlin), asynqlock.ListEvery(24*time.Hour))
					time.Sleep(time.Duration(i) * 7 * time.Hour)
					register(t, sch, "report", want.spec)
				}
				time.Sleep(time.Until(time.Date(2000, want.month, 36, 12, 0, 0, 0, berlin)))
				enqueued := k.of("enqueued")
				if n := len(k.of("missed")); n > 0 || len(enqueued) != want.ticks {
					t.Errorf("%d ticks, %d missed, want %d", len(enqueued), n, want.ticks)
				}
				if got := enqueued[len(enqueued)-1].Tick.UTC().Format(time.TimeOnly); got != want.last {
					t.Errorf("the last tick was at %s, want %s", got, want.last)
				}
			})
		})
	}
}

// asynq counts in seconds, and so do ticks.
func TestShortPeriods(t *testing.T) {
	for spec, want := range map[string]int{"@every 0s": 10, "@every 500ms": 10, "@every 1.9s": 10, "@every 3s": 3} {
		bubble(t, func(s *shop) {
			var k ticks
			register(t, s.schedule(&k), "report", spec)
			time.Sleep(10*time.Second + 10*time.Millisecond)
			if n := len(k.of("enqueued")); n != want || len(k.all()) != want {
				t.Errorf("%s: got %+v", spec, k.all())
			}
		})
	}
}

// A Scheduler may be shut down at any time, and registered with at any time; an entry that is replaced within a tick does
// not repeat it.
func TestLifeOfAScheduler(t *testing.T) {
	bubble(t, func(s *shop) {
		var k ticks
		sch := asynqlock.NewScheduler(s.locker(), asynqlock.WithTrace(traceTo(k.report)))
		register(t, sch, "before", "@every 10s")
		time.Sleep(25 * time.Second)
		s.start(sch)
		if err := sch.Start(); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("started twice: got %v", err)
		}
		time.Sleep(5 * time.Second) // and this is a tick
		if err := sch.Unregister("before"); err != nil {
			t.Error(err)
		}
		register(t, sch, "before", "@every 10s")
		for i := range 10 {
			register(t, sch, string(rune('a'+i)), "@every 10s")
		}
		time.Sleep(10*time.Second + 100*time.Millisecond)
		var got []string
		for _, e := range k.of("enqueued") {
			got = append(got, e.Info.ID)
		}
		slices.Sort(got)
		if len(slices.Compact(slices.Clone(got))) != len(got) || len(got) < 11 || len(got) > 12 || len(k.of("missed")) > 0 {
			t.Errorf("got %q", got)
		}
		for range 2 {
			sch.Shutdown()
		}
		if err := sch.Start(); !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("started after Shutdown: got %v", err)
		}
		n := len(k.all())
		time.Sleep(time.Minute)
		if len(k.all()) != n {
			t.Error("it goes on after Shutdown")
		}

		never := asynqlock.NewScheduler(s.locker())
		never.Shutdown()
		if err := never.Unregister("x"); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("got %v", err)
		}
	})
}
