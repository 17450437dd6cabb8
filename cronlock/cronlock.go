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
	"github.com/robfig/cron/v3"
)

// Guard makes the jobs of a [cron.Cron] run once per tick, on one of the replicas that have them. Make one with [New]. It is
// safe for concurrent use.
//
// Before a replica runs a tick, it claims the tick by its nominal time with [holdfast.Locker.Claim], under
// holdfast.Key("cron", name). A claim is never released: a replica that asks after a short job has ended is refused too. If
// the answer to a claim is lost, the replica repeats the claim, and both count as one. Redis remembers the latest tick of a
// name in a key, which expires when that tick is more than an hour old (see [WithClaim]), or with "@every" more than a
// period old, if that is longer. A claim of a tick more than an hour old is refused. A job and an entry of asynqlock's
// Scheduler can have the same name.
//
// The job's lock has the same key and is independent of the claim. Its lease is half of the period, from 500 ms to 15 s. The
// period is the time from one tick to the next. [WithBusy] sets what happens to a tick that finds the lock held.
//
// A tick is the Prev of the [cron.Entry], read when the job begins. It is an instant, the same in all time zones. When the
// clocks go back, "30 2 * * *" has two ticks an hour apart, as in cron, and both run. A [cron.Schedule] of your own must
// return the same times on all replicas. Each of these times is a tick.
//
// Each replica counts "@every 10s" from its own start, so its ticks differ from those of other replicas. Such a tick is
// granted only if it is at least a period later than the last one that was granted. Runs are therefore at least a period
// apart, as far as the clocks agree. When the replica that runs the job goes away, the gap can be two periods.
//
// The job finds its tick whatever wrappers the cron's chain has, see [cron.WithChain]. A wrapper can delay the job until the
// next tick has come, as DelayIfStillRunning does. Then the job reads that next tick: the earlier one does not run on this
// replica, and neither runs twice. SkipIfStillRunning and DelayIfStillRunning know only one replica, and are not needed here.
// cron.Recover is not in the chain by default. List it after SkipIfStillRunning, as in cron.WithChain(skip, cron.Recover(log)):
// in the other order SkipIfStillRunning skips forever after a panic.
//
// The keys in Redis are those of the lock and of the claim, which package holdfast describes, and cronlock:spec:<key of the
// lock>. Replicas compare their specs by that last key, with SET, GET and PEXPIRE. It expires two minutes and two periods
// after a replica has last set or confirmed it. If an ACL denies it, or with several masters, nothing is compared. A Guard
// also sends the command TIME.
type Guard struct {
	locker *holdfast.Locker
	cron   *cron.Cron
	config

	ctx    context.Context // of all jobs; Stop ends it
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	jobs    map[string]*job
	stopped bool
	runs    sync.WaitGroup // no run is added once stopped is set

	skewed sync.Once // for the warning about this replica's clock
}

// New returns a Guard for the jobs of c. opts apply to all of its jobs; a job can have options of its own.
//
// New checks its arguments and all options together. It panics if any is wrong, with an error that names each mistake and
// matches [holdfast.ErrInvalid]. Mistakes are a nil argument, a value that an option cannot have, and options that
// contradict each other or the Locker's, such as a [holdfast.WithMaxHold] below the TTL (15 s in this check, unless
// [WithLock] sets another).
func New(locker *holdfast.Locker, c *cron.Cron, opts ...Option) *Guard {
	g := &Guard{locker: locker, cron: c, jobs: map[string]*job{}}
	if c == nil {
		g.refuse("no cron")
	}
	g.set(opts)
	if locker == nil {
		g.refuse("no Locker")
	} else if err := check(locker, jobKey("name"), &g.config, longestLease); err != nil {
		g.refuse("%v", err)
	}
	if err := g.err("New"); err != nil {
		panic(err)
	}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	return g
}

// AddFunc adds a job to the cron: fn runs at each tick of spec, on one replica. name identifies the job, and must be the
// same on all replicas. spec is parsed as by [cron.Cron.AddJob].
//
// The key of the job's lock is holdfast.Key("cron", name). Whatever else locks that key in the same Redis is excluded too.
// An error that fn returns goes to the hook Failed of a [Trace], or to the log. The tick is not retried.
//
// Errors: [holdfast.ErrInvalid] for what can never work, such as a name that another job of the Guard has; cron's error for
// a bad spec. A name is free again after an error, and after [cron.Cron.Remove].
func (g *Guard) AddFunc(spec, name string, fn func(ctx context.Context) error, opts ...Option) (cron.EntryID, error) {
	j, err := g.newJob(name, fn, opts)
	if err != nil {
		return 0, err
	}
	id, err := g.add(spec, j)
	if err != nil {
		g.forget(j)
		return 0, fmt.Errorf("cronlock: job %q: %w", name, err)
	}
	return id, nil
}

// add calls AddJob of the cron. cron's parser panics at a time zone with nothing after it; add returns an error instead.
func (g *Guard) add(spec string, j *job) (id cron.EntryID, err error) {
	if strings.Contains(spec, "TZ=") && !strings.Contains(spec, " ") {
		defer func() {
			if recover() != nil {
				err = fmt.Errorf("a time zone without a spec: %q", spec)
			}
		}()
	}
	return g.cron.AddJob(spec, j)
}

// Job returns a job that runs fn, for [cron.Cron.AddJob] and [cron.Cron.Schedule]. Add the job itself, to the cron that
// [New] was given, and to one entry only. Put wrappers into the cron's chain (cron.WithChain), not around the job. Otherwise
// the job finds no tick and fails without running.
//
// Errors: [holdfast.ErrInvalid], as for [Guard.AddFunc].
func (g *Guard) Job(name string, fn func(ctx context.Context) error, opts ...Option) (cron.Job, error) {
	j, err := g.newJob(name, fn, opts)
	if err != nil {
		return nil, err // not a nil *job in a cron.Job
	}
	return j, nil
}

// Wrap is like [Guard.Job], for an existing cron.Job that takes no context.
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
		j.refuse("%v", err)
	}
	if err := j.err(fmt.Sprintf("job %q", name)); err != nil {
		return nil, err
	}
	if inSchedule() {
		return nil, invalid("job %q was made inside a wrapper's constructor and would be in no entry: pass wrappers to cron.WithChain, and jobs to AddJob", name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.jobs[name]; old != nil && old.added() != 0 {
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

// RunNow runs a job at once, on this replica, whatever the time. It uses up no tick, but a tick that comes during the run
// finds the key busy. If another run holds the lock, RunNow with [Skip] returns [holdfast.ErrNotAcquired] at once, with
// [Wait] after max, and with [Allow] it runs the job alongside. Unlike a tick, RunNow does not wait for the rest of the
// holder's lease, and the bound of [WithLateness] does not apply.
//
// RunNow returns what the job returns, or why it did not run, like [holdfast.Locker.Do]. The job's tick is the moment of the
// call. RunNow bypasses the cron's chain, so a panic of the job reaches the caller. A [Trace] reports runs, but not a call
// that did not run the job.
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

// Stop stops the cron. It waits for all running jobs of the cron, including those that are not the Guard's, and for calls of
// [Guard.RunNow]. If ctx ends first, Stop ends the contexts of this Guard's jobs with a cause that matches
// [holdfast.ErrClosed], waits for these jobs alone, and returns ctx's error. A job that ignores its context keeps Stop
// waiting.
//
// Call Stop before the Locker's Shutdown. Do not call it from a job: Stop would wait for that job. Afterwards no job of the
// Guard runs again, even if the cron is restarted.
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
	var lock, claim []holdfast.Option
	for _, o := range c.lockOptions(lease, 0) {
		lock = append(lock, o)
	}
	for _, o := range c.claim {
		claim = append(claim, o)
	}
	if err := locker.Check(key, lock...); err != nil {
		return fmt.Errorf("the options of the Locker and of WithLock (the TTL is half of the period unless WithLock sets one): %w", err)
	}
	if err := locker.Check(key, claim...); err != nil {
		return fmt.Errorf("WithClaim: %w", err)
	}
	return nil
}

// inSchedule reports whether the caller was called by cron's Schedule, which calls the constructors of wrappers. Schedule
// holds cron's mutex, so Entries would wait forever.
func inSchedule() bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "github.com/robfig/cron/v3.(*Cron).Schedule") {
			return true
		}
		if !more {
			return false
		}
	}
}

// isNil also finds a nil pointer or function in an interface.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || (r.Kind() == reflect.Pointer || r.Kind() == reflect.Func) && r.IsNil()
}

// invalid returns an error that matches holdfast.ErrInvalid and gives the reason.
func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "cronlock: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }
