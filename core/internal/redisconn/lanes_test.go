package redisconn

import (
	"testing"
	"time"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// How many commands may be away follows from the fastest answer of late: a farther server gets more, and what had to wait
// for something else says nothing.
func TestLanesFollowTheRoundTrip(t *testing.T) {
	l := &server{most: 48}
	now := time.Hour
	check := func(what string, want int) {
		t.Helper()
		if got := l.width(); got != want {
			t.Errorf("%s: %d lanes, want %d", what, got, want)
		}
	}
	check("before any answer", MinLanes)
	l.measured(30*time.Microsecond, now)
	check("near", MinLanes)
	l.measured(20*time.Millisecond, now)
	check("after one that waited", MinLanes)
	now += paceWindow + 1
	l.measured(500*time.Microsecond, now)
	check("farther away since a moment", MinLanes)
	now += paceWindow + 1
	l.measured(500*time.Microsecond, now)
	check("farther away for longer", MinLanes+8)
	for range 2 {
		now += paceWindow + 1
		l.measured(5*time.Millisecond, now)
	}
	check("far away", MinLanes+83)
	l.measured(30*time.Microsecond, now)
	check("near again", MinLanes)
}
