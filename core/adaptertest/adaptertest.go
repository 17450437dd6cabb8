package adaptertest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/core"
)

// An Adapter is what [Test] is to know of one.
type Adapter struct {
	// Start starts a replica of a service. Its framework calls work under the adapter, with the context that a handler gets.
	// Start ends with t.Cleanup what it has started.
	//
	// Start returns what makes the framework do that once, for a name that becomes a key. The context that the adapter gets
	// is ctx, or descends from it; a framework without one has it set in front of the adapter. run returns when the
	// framework is done, and tells what became of the call, however the framework shows it:
	//
	//	nil               work was called, and the lock was held until it returned
	//	an error          work was not called, or the lock was lost; it matches the reason of holdfast, if there is one
	//	error or a panic  work has panicked
	//
	// run and work are called on many goroutines.
	Start func(t testing.TB, locker *holdfast.Locker, work func(ctx context.Context, name string)) (run func(ctx context.Context, name string) error)

	// Key returns the key under which the adapter locks a name.
	Key func(name string) string

	// NoLock is true if the context of the work does not carry the lock, because the framework does not pass one on.
	NoLock bool

	// RealTime runs the scenarios in real time, for a framework that uses sockets. They take some seconds then. Otherwise
	// each scenario has a testing/synctest bubble, in which whatever is left behind fails it. Goroutines that a framework
	// starts once for all have to be started before Test, by a first call.
	RealTime bool
}

// Test runs the scenarios, each in a subtest. They need no server: Redis is miniredis.
func Test(t *testing.T, a Adapter) {
	t.Helper()
	if a.Start == nil || a.Key == nil {
		t.Fatal("adaptertest: an Adapter needs Start and Key")
	}
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
