package servertest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server goes by its clock in all that it does by the wall clock, and in
// nothing else, and another server does not.
func TestClockIsThatOfItsServer(t *testing.T) {
	ctx := context.Background()
	clock := NewClock(t)
	s := clock.Redis()
	rdb, other := s.Client(), Redis(t).Client()
	// ahead is how far a server's clock is ahead, to some seconds of a busy machine.
	ahead := func(rdb *redis.Client) time.Duration {
		t.Helper()
		at, err := rdb.Time(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(at).Round(time.Minute)
	}
	for _, step := range []time.Duration{time.Hour, -3 * time.Hour, 2 * time.Hour} {
		was := clock.Ahead()
		if err := rdb.Set(ctx, "k", "v", 30*time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		clock.Step(step)
		if got := ahead(rdb); got != was+step || clock.Ahead() != was+step {
			t.Errorf("%v after %v: TIME is %v ahead, and the clock %v", step, was, got, clock.Ahead())
		}
		if got := ahead(other); got != 0 {
			t.Errorf("another server: got %v ahead, want 0", got)
		}
		left, err := rdb.PTTL(ctx, "k").Result() // negative where there is none
		if err != nil {
			t.Fatal(err)
		}
		if left, want := left.Round(time.Minute), max(0, 30*time.Minute-step); left != want {
			t.Errorf("%v: a key of 30 m has %v left, want %v", step, left, want)
		}
	}
	clock.Step(time.Hour)
	s.Kill()
	s.Start()
	if got := ahead(rdb); got != time.Hour {
		t.Errorf("after a restart: got %v ahead, want 1h", got)
	}
}
