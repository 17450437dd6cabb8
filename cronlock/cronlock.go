package cronlock

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
	"github.com/robfig/cron/v3"
)

// Guard makes the jobs of a [Cron] run once per tick. Make one with [New]. It is safe for concurrent use.
//
// A replica claims a tick, the Prev of the [cron.Entry], as package tick says, before it runs it. The lease of the
// job's lock is half of the period, the time from one tick to the next, from 500 ms to 15 s.
type Guard struct {
	locker *holdfast.Locker
	cron   host
	config
	runner *tick.Runner

	mu   sync.Mutex
	jobs map[string]*job
}

// New returns a Guard for the jobs of c, with options for all of them. It panics if an argument or an option is wrong,
// or contradicts another or the Locker's, with an error that names each mistake and matches [holdfast.ErrInvalid].
func New(locker *holdfast.Locker, c Cron, opts ...Option) *Guard {
	g := &Guard{locker: locker, jobs: map[string]*job{}}
	g.cron = hosted(c, &g.Mistakes)
	g.set(append([]Option{WithBusy(Skip())}, opts...))
	if locker == nil {
		g.Refuse("no Locker")
	} else {
		g.check(locker, "name")
	}
	if err := g.Err("cronlock: New"); err != nil {
		panic(err)
	}
	g.runner = tick.NewRunner(&tick.Clock{Locker: locker, Now: func() time.Time { return time.Now().Add(g.ahead) }})
	return g
}

// AddFunc adds a job to the cron: fn runs at each tick of spec, which is parsed as by [cron.Cron.AddJob]. name
// identifies the job on all replicas. "@every 10s" has a tick at each multiple of 10 s since 1970. In an entry that you
// add yourself, cron counts the periods from the start of each replica, and one that restarts more often runs the job
// never.
//
// Errors: [holdfast.ErrInvalid], also for a name that another job of the Guard has; cron's error for a bad spec.
func (g *Guard) AddFunc(spec, name string, fn func(ctx context.Context) error, opts ...Option) (cron.EntryID, error) {
	j, err := g.Job(name, fn, opts...)
	if err != nil {
		return 0, err
	}
	id, err := g.cron.add(spec, j)
	if err == nil {
		return id, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.jobs[name] == j {
		delete(g.jobs, name)
	}
	return 0, fmt.Errorf("cronlock: job %q: %w", name, err)
}

// Job returns a job that runs fn, for [cron.Cron.AddJob] and [cron.Cron.Schedule]. Add the job itself, to the cron that
// [New] was given, and to one entry only. Put wrappers into the cron's chain (cron.WithChain), not around the job: it
// would find no tick and fail without running. Errors: [holdfast.ErrInvalid].
func (g *Guard) Job(name string, fn func(ctx context.Context) error, opts ...Option) (cron.Job, error) {
	switch {
	case fn == nil:
		return nil, invalid("job %q is nil", name)
	case name == "":
		return nil, invalid("a job without a name: give it one, the same on every replica")
	case inConstructor(): // before anything is asked of the cron
		return nil, invalid("job %q was made inside a wrapper's constructor and would be in no entry: pass wrappers to cron.WithChain, and jobs to AddJob", name)
	}
	j := &job{g: g, name: name, fn: fn, config: g.config.clone()}
	j.set(opts)
	j.check(g.locker, name)
	j.work.Do = j.do
	if err := j.Err(fmt.Sprintf("cronlock: job %q", name)); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.jobs[name]; old != nil {
		if _, added := maps.Collect(g.cron.jobs())[old]; added {
			return nil, invalid("there is already a job %q: choose another name, or remove that job's entry first", name)
		}
	}
	g.jobs[name] = j
	return j, nil
}

// Wrap is [Guard.Job] for a cron.Job, which takes no context.
func (g *Guard) Wrap(name string, inner cron.Job, opts ...Option) (cron.Job, error) {
	if isNil(inner) {
		return nil, invalid("job %q is nil", name)
	}
	return g.Job(name, func(context.Context) error {
		inner.Run()
		return nil
	}, opts...)
}

// RunNow runs a job at once, and returns what the job returns, or why it did not run. It uses up no tick: the job's
// tick is the moment of the call. It finds a busy key as a tick does, but with [Skip] it does not wait. It bypasses the
// cron's chain, so a panic of the job reaches the caller.
func (g *Guard) RunNow(ctx context.Context, name string) error {
	g.mu.Lock()
	j := g.jobs[name]
	g.mu.Unlock()
	if j == nil {
		return invalid("there is no job %q", name)
	}
	o, err := g.runner.Now(ctx, &j.work)
	j.reportLoss(o)
	return err
}

// Stop stops the cron for good, and waits for all of its running jobs and for calls of [Guard.RunNow]. If ctx ends
// first, Stop ends the contexts of this Guard's jobs with a cause that matches [holdfast.ErrClosed], waits for these
// jobs alone, and returns ctx's error. A job that calls Stop waits for itself.
func (g *Guard) Stop(ctx context.Context) error {
	if ctx == nil {
		return invalid("nil context")
	}
	return g.runner.Stop(ctx, g.cron.Stop().Done()) // jobs that cron has started may still enter
}

// inConstructor reports whether the caller was called by the constructor of a wrapper. A cron calls constructors, by Chain.Then,
// with its mutex held, robfig's in Schedule and forks in more methods. Entries would wait for that mutex forever.
func inConstructor() bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for chain, more := false, true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if chain && strings.Contains(f.Function, ".(*Cron).") {
			return true
		}
		chain = strings.HasSuffix(f.Function, ".Chain.Then")
	}
	return false
}

// isNil also finds a nil pointer or function in an interface.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || (r.Kind() == reflect.Pointer || r.Kind() == reflect.Func) && r.IsNil()
}

// invalid returns an error that matches holdfast.ErrInvalid and gives the reason.
func invalid(format string, args ...any) error { return wiring.Invalid("cronlock: "+format, args...) }
