package history

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// explained is how many events of all worlds had an explanation.
var explained atomic.Int64

// traced tells whether what happens in a scene is held against the specification: on one server, whose clock runs. A server
// that is killed while it appends to its file may have half of what a script did there, and come back with that.
func traced(s scene) bool {
	return tracing && s.lock == Holdfast && s.nodes == 1 && !s.durable && !slices.ContainsFunc(s.faults, func(f fault) bool { return f.clocks != right })
}

// hear holds what the scripts of a world write against the specification, until the function that it returns is called.
func hear(w *world) (unheard func()) {
	tr := servertest.Trace{Client: w.admins[0]}
	over := make(chan struct{})
	var hearing sync.WaitGroup
	hearing.Go(func() {
		for last := false; !last; {
			n, err := tr.Check()
			select {
			case <-over:
				last, err = true, errors.Join(err, tr.Finish())
			case <-time.After(time.Duration(max(0, 5-n)) * time.Millisecond):
			}
			if err != nil {
				w.t.Errorf("SEED=%d: %v", w.seed, err)
				return
			}
		}
	})
	return func() {
		close(over)
		hearing.Wait()
		explained.Add(tr.Events)
		w.t.Logf("%d events of %s explained", tr.Events, w.t.Name())
	}
}
