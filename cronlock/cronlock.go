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

// Guard makes jobs of a [cron.Cron] run once per tick, on one of the replicas that have them. It is safe for concurrent
// use; make it with [New].
//
// A replica claims a tick by its nominal time with [holdfast.Locker.Claim], under holdfast.Key("cron", name), before it runs
// it; a claim is never released, and no lease has to outlast it. A claim whose answer is lost is asked for again, as the
// same claim. An entry of asynqlock's Scheduler may have the same name. The memory of a name is a key of Redis, which expires
// when its tick is more than an hour old (see [WithClaim]), or with "@every" its period, if that is longer; a claim of a tick
// more than an hour old is refused.
//
// Beside the claim there is the lock of the same key, which the claim is independent of. Its lease is half of the period, from
// 500 ms to 15 s, and a tick that finds it held waits for what may be left of a dead holder's lease, see [Skip].
//
// A tick is the Prev of the [cron.Entry], read when the job begins. It is a moment, and so the same in all time zones: when the
// clocks go back, "30 2 * * *" has two ticks an hour apart, as cron has them, and both run. So does each moment that a
// [cron.Schedule] of your own names, which has to name the same ones on all replicas.
//
// "@every 10s" is counted by each replica from its own start, so that its ticks are other moments there. There a tick is
// granted only if it comes a period after the last that was granted, or more: runs are a period apart, as far as the clocks
// agree. When the replica that ran them has gone, the gap can be two periods.
//
// The job reads its tick wherever it is in the cron's chain. A wrapper of the chain that holds it up until the next tick has
// come (DelayIfStillRunning does) makes it read that one: the earlier one is left out on this replica, and none runs twice.
// SkipIfStillRunning and DelayIfStillRunning know of one replica; here they are not needed. cron.Recover is not in the chain
// by default: in cron.NewChain put it after SkipIfStillRunning, which would otherwise skip for ever after a panic.
//
// Keys: beside the lock's and the claim's, which package holdfast describes, and the command TIME, there is
// cronlock:spec:<key of the lock>, by SET, GET and PEXPIRE: what replicas compare their specs by. It expires two minutes and two
// periods after the last look of a replica. Where an ACL denies it, or with a Locker on several masters, nothing is compared.
type Guard struct {
	locker *holdfast.Locker
	cron   *cron.Cron
	config

	ctx    context.Context // of all jobs; ends when Stop loses patience
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	jobs    map[string]*job
	stopped bool
	runs    sync.WaitGroup // none is added after stopped

	skewed sync.Once // it is said once
}

// New returns a Guard for the jobs of c. opts are for all of its jobs, which may have others of their own.
//
// New judges the arguments and all options, and panics with an error that names each mistake: it matches
// [holdfast.ErrInvalid]. Mistakes are a nil argument, a value that an option cannot have, and options that cannot work
// together or with the Locker's, such as a WithMaxHold below the TTL.
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

// AddFunc adds a job to the cron: fn runs at each tick of spec, on one replica. name is the job's on all of them. The key of
// its lock is holdfast.Key("cron", name); what else locks that key of the same Redis is excluded as well. spec is read as by
// [cron.Cron.AddJob]. What fn returns goes to the hooks of a [Trace], or to the log; nothing is repeated.
//
// Errors: [holdfast.ErrInvalid] for what can never work, such as a name that another job of the Guard has; cron's error for
// a spec. A name is free again after an error, and after [cron.Cron.Remove].
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

// add is AddJob of the cron, whose own parser panics at a time zone with nothing behind it.
func (g *Guard) add(spec string, j *job) (id cron.EntryID, err error) {
	if strings.Contains(spec, "TZ=") && !strings.Contains(spec, " ") {
		defer func() {
			if recover() != nil {
				err = fmt.Errorf("a time zone and nothing behind it: %q", spec)
			}
		}()
	}
	return g.cron.AddJob(spec, j)
}

// Job returns fn as a job for [cron.Cron.AddJob] and [cron.Cron.Schedule]. Add it itself, once: put wrappers into the
// cron's chain (cron.WithChain), and not around it, or it does not find its tick.
//
// Errors: [holdfast.ErrInvalid], as [Guard.AddFunc].
func (g *Guard) Job(name string, fn func(ctx context.Context) error, opts ...Option) (cron.Job, error) {
	j, err := g.newJob(name, fn, opts)
	if err != nil {
		return nil, err // and not a nil *job
	}
	return j, nil
}

// Wrap is [Guard.Job] for a job that knows no context.
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
		return nil, invalid("a job without a name: give it one, the same on all replicas")
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
		return nil, invalid("job %q is made while cron puts another one into its chain, and would be in no entry: wrappers go into cron.WithChain, jobs to AddJob", name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.jobs[name]; old != nil && old.added() != 0 {
		return nil, invalid("there is a job %q already: give this one another name, or remove that one's entry first", name)
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

// RunNow runs a job at once, on this replica and whatever the time: it uses up no tick, but one that comes meanwhile finds the
// key busy. Where another run goes on it does what the job's [Policy] says; with [Skip] it returns [holdfast.ErrNotAcquired] at
// once. It returns what the job returns, or why it did not run, as [holdfast.Locker.Do] does. The job's tick is the moment of
// the call. The cron's chain is not run, so that a panic of the job goes to the caller. The hooks of [Trace] tell of a run, but
// not of a call that did not run: its error does.
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

// errStopped matches holdfast.ErrClosed, whose text is about a Locker.
var errStopped error = stoppedError{}

type stoppedError struct{}

func (stoppedError) Error() string        { return "cronlock: the Guard was stopped" }
func (stoppedError) Is(target error) bool { return target == holdfast.ErrClosed }

// Stop stops the cron, and waits for the jobs of the cron that run, and for calls of [Guard.RunNow]. When ctx ends, it ends the
// contexts of this Guard's jobs with a cause that matches [holdfast.ErrClosed], waits for them, and returns ctx's error: a job
// that ignores its context keeps Stop waiting. Call it before the Locker's Shutdown, and not from within a job, for which it
// would wait. Jobs do not run any more afterwards, even if the cron is started again.
func (g *Guard) Stop(ctx context.Context) error {
	if ctx == nil {
		return invalid("nil context")
	}
	defer g.cancel(errStopped)
	jobs, done := g.cron.Stop(), make(chan struct{})
	go func() {
		<-jobs.Done() // those that have started may run
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

// enter counts a run that begins.
func (g *Guard) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.runs.Add(1)
	}
	return !g.stopped
}

// leave lets no more runs begin.
func (g *Guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
}

// jobKey is the key of a job's lock, and the name that its ticks are claimed by: not that of a request or a task.
func jobKey(name string) string { return holdfast.Key("cron", name) }

// check has the Locker judge a key and options.
func check(locker *holdfast.Locker, key string, c *config, lease time.Duration) error {
	var lock, claim []holdfast.Option
	for _, o := range c.lockOptions(lease, 0) {
		lock = append(lock, o)
	}
	for _, o := range c.claim {
		claim = append(claim, o)
	}
	if err := locker.Check(key, lock...); err != nil {
		return fmt.Errorf("the options of the Locker and of WithLock, with a TTL of half of the period unless WithLock has one: %w", err)
	}
	if err := locker.Check(key, claim...); err != nil {
		return fmt.Errorf("WithClaim: %w", err)
	}
	return nil
}

// inSchedule tells whether cron is calling, as it calls the constructors of wrappers: with its mutex held, on which Entries
// would wait for ever.
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

// invalid is a holdfast.ErrInvalid with its reason.
func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "cronlock: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }
