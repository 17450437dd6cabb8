package cronlock

import (
	"context"
	"fmt"
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

	ctx    context.Context // of all jobs; Stop ends it
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	jobs    map[string]*job
	stopped bool
	runs    sync.WaitGroup // no run is added once stopped is set

	clock tick.Clock
}

// New returns a Guard for the jobs of c, with options for all of them. It panics if an argument or an option is wrong,
// or contradicts another or the Locker's, with an error that names each mistake and matches [holdfast.ErrInvalid].
func New(locker *holdfast.Locker, c Cron, opts ...Option) *Guard {
	h, mistake := hosted(c)
	g := &Guard{locker: locker, cron: h, jobs: map[string]*job{}}
	if mistake != "" {
		g.Refuse("%s", mistake)
	}
	g.set(opts)
	if locker == nil {
		g.Refuse("no Locker")
	} else if err := check(locker, jobKey("name"), &g.config, longestLease); err != nil {
		g.Refuse("%v", err)
	}
	if err := g.Err("cronlock: New"); err != nil {
		panic(err)
	}
	g.clock.Locker, g.clock.Now = locker, func() time.Time { return time.Now().Add(g.ahead) }
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	return g
}

// AddFunc adds a job to the cron: fn runs at each tick of spec, which is parsed as by [cron.Cron.AddJob]. name
// identifies the job on all replicas. "@every 10s" has a tick at each multiple of 10 s since 1970. In an entry that you
// add yourself, cron counts the periods from the start of each replica, and one that restarts more often runs the job
// never.
//
// Errors: [holdfast.ErrInvalid], also for a name that another job of the Guard has; cron's error for a bad spec.
func (g *Guard) AddFunc(spec, name string, fn func(ctx context.Context) error, opts ...Option) (cron.EntryID, error) {
	j, err := g.newJob(name, fn, opts)
	if err != nil {
		return 0, err
	}
	id, err := g.cron.add(spec, j)
	if err != nil {
		g.forget(j)
		return 0, fmt.Errorf("cronlock: job %q: %w", name, err)
	}
	return id, nil
}

// Job returns a job that runs fn, for [cron.Cron.AddJob] and [cron.Cron.Schedule]. Add the job itself, to the cron that
// [New] was given, and to one entry only. Put wrappers into the cron's chain (cron.WithChain), not around the job: it
// would find no tick and fail without running. Errors: [holdfast.ErrInvalid].
func (g *Guard) Job(name string, fn func(ctx context.Context) error, opts ...Option) (cron.Job, error) {
	j, err := g.newJob(name, fn, opts)
	if err != nil {
		return nil, err // not a nil *job in a cron.Job
	}
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

func (g *Guard) newJob(name string, fn func(context.Context) error, opts []Option) (*job, error) {
	if fn == nil {
		return nil, invalid("job %q is nil", name)
	}
	if name == "" {
		return nil, invalid("a job without a name: give it one, the same on every replica")
	}
	j := &job{g: g, name: name, key: jobKey(name), fn: fn, config: g.config.clone()}
	j.set(opts)
	if err := check(g.locker, j.key, &j.config, longestLease); err != nil {
		j.Refuse("%v", err)
	}
	if err := j.Err(fmt.Sprintf("cronlock: job %q", name)); err != nil {
		return nil, err
	}
	if inConstructor() { // before anything is asked of the cron
		return nil, invalid("job %q was made inside a wrapper's constructor and would be in no entry: pass wrappers to cron.WithChain, and jobs to AddJob", name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.jobs[name]; old != nil && g.cron.has(old) {
		return nil, invalid("there is already a job %q: choose another name, or remove that job's entry first", name)
	}
	g.jobs[name] = j
	return j, nil
}

func (g *Guard) forget(j *job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.jobs[j.name] == j {
		delete(g.jobs, j.name)
	}
}

// RunNow runs a job at once, and returns what the job returns, or why it did not run. It uses up no tick: the job's
// tick is the moment of the call. It finds a busy key as a tick does, but with [Skip] it does not wait. It bypasses the
// cron's chain, so a panic of the job reaches the caller.
func (g *Guard) RunNow(ctx context.Context, name string) error {
	if ctx == nil {
		return invalid("nil context")
	}
	g.mu.Lock()
	j := g.jobs[name]
	g.mu.Unlock()
	if j == nil {
		return invalid("there is no job %q", name)
	}
	if !g.enter() {
		return errStopped
	}
	defer g.runs.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.ctx, func() { cancel(context.Cause(g.ctx)) })()
	anyTime := func() error { return nil }
	o, err := j.attempt(ctx, time.Now(), j.lockOptions(longestLease, j.busy.wait), anyTime)
	if err == nil {
		err = o.result
	}
	return err
}

// errStopped matches holdfast.ErrClosed, but does not use its text, which is about a Locker.
var errStopped error = stoppedError{}

type stoppedError struct{}

func (stoppedError) Error() string        { return "cronlock: the Guard was stopped" }
func (stoppedError) Is(target error) bool { return target == holdfast.ErrClosed }

// Stop stops the cron for good, and waits for all of its running jobs and for calls of [Guard.RunNow]. If ctx ends
// first, Stop ends the contexts of this Guard's jobs with a cause that matches [holdfast.ErrClosed], waits for these
// jobs alone, and returns ctx's error. A job that calls Stop waits for itself.
func (g *Guard) Stop(ctx context.Context) error {
	if ctx == nil {
		return invalid("nil context")
	}
	defer g.cancel(errStopped)
	jobs, done := g.cron.Stop(), make(chan struct{})
	go func() {
		<-jobs.Done() // jobs that cron has started may still enter
		g.leave()
		g.runs.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		g.leave()
		g.cancel(errStopped)
		g.runs.Wait()
		return ctx.Err()
	}
}

// enter counts a run that begins. It reports false if the Guard is stopped: then the run must not begin.
func (g *Guard) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.runs.Add(1)
	}
	return !g.stopped
}

// leave lets no further run begin.
func (g *Guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
}

// jobKey is the key of a job's lock, and the name under which its ticks are claimed. "cron" keeps it apart from other keys.
func jobKey(name string) string { return holdfast.Key("cron", name) }

// check lets the Locker check a key and options.
func check(locker *holdfast.Locker, key string, c *config, lease time.Duration) error {
	if err := locker.Check(key, c.lockOptions(lease, 0)...); err != nil {
		return fmt.Errorf("the options of the Locker and of WithLock (the TTL is half of the period unless WithLock sets one): %w", err)
	}
	if err := tick.Check(locker, key, c.claim...); err != nil {
		return fmt.Errorf("WithClaim: %w", err)
	}
	return nil
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
