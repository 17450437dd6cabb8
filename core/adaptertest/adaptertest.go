package adaptertest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/core"
)

// An Adapter is what [Test] is to know of one.
type Adapter struct {
	// Start starts a replica of a service. Its framework calls work under the adapter, with the context that a handler
	// gets. Start returns what makes the framework do that once, for a name that becomes a key, and then returns what became
	// of it: nil if work was called and the lock was held until it returned, and otherwise an error that matches the
	// reason of holdfast. A panic of work may go on in it. Both are called on many goroutines.
	//
	// Start ends with t.Cleanup what it has started, before the Locker ends.
	Start func(t testing.TB, locker *holdfast.Locker, work func(ctx context.Context, name string)) (run func(ctx context.Context, name string) error)

	// Key returns the key under which the adapter locks a name.
	Key func(name string) string

	// NoContext is true if the context of the work does not carry the lock, because the framework passes none.
	NoContext bool

	// RealTime runs the scenarios in real time, for a framework that uses sockets or starts goroutines once for all. They
	// take some seconds then. Otherwise each scenario has a testing/synctest bubble, in which whatever is left behind fails it.
	RealTime bool
}

// Test runs the scenarios, each in a subtest. They need no server: Redis is miniredis.
func Test(t *testing.T, a Adapter) {
	t.Helper()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if a.RealTime {
				run(t, a, s)
			} else {
				synctest.Test(t, func(t *testing.T) { run(t, a, s) })
			}
		})
	}
}

func run(t *testing.T, a Adapter, s scenario) {
	if err := s.play(newStage(t, a)); err != nil {
		t.Error(err)
	}
}
