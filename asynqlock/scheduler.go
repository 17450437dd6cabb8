package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/robfig/cron/v3"
)

// Scheduler enqueues tasks by the clock, like [asynq.Scheduler]. It can run on every replica: each tick is enqueued by one
// of them. Make it with [NewScheduler].
//
// A tick is a nominal time, the same on all replicas. "*/5 * * * *" has a tick at 12:05:00 in the time of the Scheduler's
// location. "@every 5m" has one at each multiple of 5 min since 1970, whenever the replica was started. Before a replica
// enqueues a task, it claims the tick with [holdfast.Locker.Claim], under the name holdfast.Key("asynq", name). So the
// replicas' clocks may differ, a task may be done before a slow replica gets there, and replicas may come and go.
//
// At most one replica enqueues a tick. One does, unless
//
//   - no replica whose clock is close enough to that of Redis, see below, reaches Redis within the bound of [WithLateness],
//     or
//   - the replica that claimed the tick dies, or cannot enqueue the task, before it has done so.
//
// The claims live in the Locker's Redis until their tick is more than an hour old. If Redis loses one in that time, for
// example in a restart without persistence, its tick can be enqueued again. The same goes if the clock of Redis is set
// forward by more than an hour, and then back. A cronlock job can have the same name. Unlike asynq's own, a Scheduler is not
// listed among the Inspector's SchedulerEntries.
//
// A replica whose clock is ahead waits until the tick has come by the clock of Redis (TIME). If a clock is off by more than
// 1 s, slog warns about it once. A replica whose clock is ahead by more than 10 s, or behind by more than 1 h, enqueues
// nothing: see [WithClaim]. With a Locker on several masters there is no such common clock, and a replica enqueues too early
// by as much as its own clock is ahead.
type Scheduler struct {
	locker *holdfast.Locker
	client *asynq.Client
	cron   *cron.Cron
	schedulerConfig

	ctx  context.Context // ends when Shutdown stops waiting
	stop context.CancelFunc

	mu      sync.Mutex
	entries map[string]cron.EntryID
	state   state

	skewed sync.Once // the warning about the clock
}

// NewScheduler returns a Scheduler that enqueues into the Locker's Redis, or into that of [WithRedis].
//
// NewScheduler checks the Locker and all options together. It panics if any is wrong, with an error that names each mistake
// and matches [holdfast.ErrInvalid].
func NewScheduler(locker *holdfast.Locker, opts ...SchedulerOption) *Scheduler {
	s := &Scheduler{locker: locker, schedulerConfig: schedulerDefaults(), entries: map[string]cron.EntryID{}}
	for _, o := range opts {
		if o == nil {
			s.refuse("a nil option")
			continue
		}
		o.scheduler(&s.schedulerConfig)
	}
	if s.lateness != nil && *s.lateness <= 0 {
		s.refuse("WithLateness(%v): want more than 0", *s.lateness)
	}
	if locker == nil {
		s.refuse("no Locker")
	} else if err := checkClaim(locker, s.claim); err != nil {
		s.refuse("WithClaim: %v", err)
	}
	s.redis = s.tasksIn(locker, s.redis)
	if err := s.err("NewScheduler"); err != nil {
		panic(err)
	}
	s.client = asynq.NewClientFromRedisClient(s.redis)
	s.cron = cron.New(cron.WithLocation(s.location))
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// state says whether a Scheduler was started and shut down.
type state uint8

const (
	fresh state = iota
	running
	closed
)

// Register adds an entry: task is enqueued at each tick of spec. spec has five fields, or is a descriptor such as @daily or
// @every 10s, as for asynq's own Scheduler. name names the entry on all replicas, which exclude each other by it. No other
// entry in the whole Redis may have the same name. Register and Unregister can be called at any time.
//
// For each tick the task gets an ID of its own, made of the name and the Unix time: "invoices@1795271400". [Tick] reads it
// for the handler. opts are asynq's, and must not set an ID.
//
// Errors: [holdfast.ErrInvalid].
func (s *Scheduler) Register(spec, name string, task *asynq.Task, opts ...asynq.Option) error {
	if task == nil || task.Type() == "" {
		return invalid("Register(%q, %q) without a task", spec, name)
	}
	for _, o := range opts {
		switch {
		case o == nil:
			return invalid("Register(%q, %q) with a nil option", spec, name)
		case o.Type() == asynq.TaskIDOpt:
			return invalid("Register(%q, %q) with %v: each tick has its own", spec, name, o)
		}
	}
	if err := s.checkName(name); err != nil {
		return err
	}
	schedule, err := parse(spec)
	if err != nil {
		return invalid("Register(%q, %q): %v", spec, name, err)
	}
	first := schedule.Next(time.Now().In(s.location))
	if first.IsZero() {
		return invalid("Register(%q, %q): the spec never matches", spec, name)
	}
	e := &entry{s: s, name: name, task: task, opts: opts, ahead: s.ahead}
	if s.lateness != nil {
		e.lateness = *s.lateness
	} else {
		e.lateness = min(schedule.Next(first).Sub(first)/2, defaultLateness)
	}
	if s.ahead != 0 {
		schedule = skewed{schedule, s.ahead}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.entries[name]; ok {
		return invalid("Register(%q, %q): there is already an entry of this name", spec, name)
	}
	e.id = s.cron.Schedule(schedule, e)
	s.entries[name] = e.id
	return nil
}

// checkClaim has the Locker check the options.
func checkClaim(locker *holdfast.Locker, claim []holdfast.ClaimOption) error {
	opts := make([]holdfast.Option, len(claim))
	for i, o := range claim {
		opts[i] = o
	}
	return locker.Check(claimed("name"), opts...)
}

// claimed returns the name under which an entry's ticks are claimed. It differs from that of a lock or a cron job of the
// same name.
func claimed(name string) string { return holdfast.Key("asynq", name) }

// checkName has the Locker check the name.
func (s *Scheduler) checkName(name string) error {
	for _, n := range []string{name, claimed(name)} {
		if err := s.locker.Check(n); err != nil {
			return fmt.Errorf("asynqlock: %w", err)
		}
	}
	return nil
}

// Unregister ends the ticks of name on this replica.
//
// Errors: [holdfast.ErrInvalid] for an entry that does not exist.
func (s *Scheduler) Unregister(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.entries[name]
	if !ok {
		return invalid("Unregister(%q): there is no such entry", name)
	}
	s.cron.Remove(id)
	delete(s.entries, name)
	return nil
}

// Run starts the Scheduler, waits until the process receives SIGINT or SIGTERM, and shuts it down. A program that handles
// signals itself uses Start and Shutdown instead.
//
// Errors: those of Start.
func (s *Scheduler) Run() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM) // before Start, so that no signal is lost
	defer signal.Stop(signals)
	if err := s.Start(); err != nil {
		return err
	}
	<-signals
	s.Shutdown()
	return nil
}

// Start starts the ticks, from the next one of each entry on. It does not block. A Scheduler can be started once.
//
// Errors: [holdfast.ErrInvalid] if it is running, [holdfast.ErrClosed] if it was shut down.
func (s *Scheduler) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case running:
		return invalid("Start: the Scheduler is already running")
	case closed:
		return fmt.Errorf("asynqlock: Start: the Scheduler was shut down: %w", holdfast.ErrClosed)
	}
	s.state = running
	s.cron.Start()
	return nil
}

// shutdownTimeout is the default of asynq's Server.
const shutdownTimeout = 8 * time.Second

// Shutdown ends the ticks and waits for those that are being enqueued, for up to 8 s, as asynq's Server waits for its
// handlers. A tick takes longer only if Redis does not answer or the replica's clock is ahead by more than that. The tick is
// then missed on this replica. Shut the Scheduler down before the Locker. A Scheduler that was shut down before its Start
// cannot be started.
func (s *Scheduler) Shutdown() {
	s.mu.Lock()
	before := s.state
	s.state = closed
	s.mu.Unlock() // a tick that is running needs it
	if before != running {
		return
	}
	defer s.stop()
	defer time.AfterFunc(shutdownTimeout, s.stop).Stop()
	<-s.cron.Stop().Done()
}

// entry is the job that cron runs.
type entry struct {
	s        *Scheduler
	name     string
	task     *asynq.Task
	opts     []asynq.Option
	lateness time.Duration
	ahead    time.Duration
	id       cron.EntryID
}

// Run runs one tick.
func (e *entry) Run() {
	e.s.mu.Lock() // Register may still be writing id
	id := e.id
	e.s.mu.Unlock()
	// cron sets Prev right after it has started this, in the loop that answers Entry. So Prev is the tick that this run is
	// for, unless the next one has come in the meantime. That one is then claimed twice and granted once.
	due := e.s.cron.Entry(id).Prev
	if due.IsZero() {
		return // removed in the meantime
	}
	e.at(due.Round(0)) // without the monotonic clock, which stands still while a machine sleeps
}

// at runs the tick that is due at that time, by the clock of this replica.
func (e *entry) at(due time.Time) {
	tick := due.Add(e.ahead)
	if late := time.Since(due); late >= e.lateness {
		e.s.tell(e.s.ctx, missedHook, Event{Name: e.name, Tick: tick, Err: &lateError{late, e.lateness}})
		return
	}
	// The bound counts from the tick, and not from now: a machine that was suspended is late.
	ctx, cancel := context.WithDeadline(e.s.ctx, due.Add(e.lateness))
	defer cancel()
	early := e.s.early(ctx, tick)
	if early > longestEarly {
		e.report(ctx, tick, early)
		return
	}
	if early > 0 {
		ctx, cancel = context.WithDeadline(e.s.ctx, due.Add(early+e.lateness))
		defer cancel()
		pauseFor(ctx, early)
	}
	e.report(ctx, tick, 0)
}

type lateError struct{ by, bound time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("asynqlock: %v late, at most %v allowed", e.by.Round(time.Millisecond), e.bound)
}

func (e *entry) report(ctx context.Context, tick time.Time, early time.Duration) {
	hook, event := e.tick(ctx, tick, early)
	e.s.tell(ctx, hook, event)
}

// pauseFor waits for d, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// tick claims the tick. If it is granted, tick waits for early and then enqueues the task: early is above 0 only if a window
// of WithClaim grants ticks that early. It keeps trying both until ctx ends.
func (e *entry) tick(ctx context.Context, tick time.Time, early time.Duration) (hook, Event) {
	event := Event{Name: e.name, Tick: tick}
	end, _ := ctx.Deadline()
	claim := append(e.s.claim[:len(e.s.claim):len(e.s.claim)], holdfast.WithWait(max(0, time.Until(end))))
	won, err := e.s.locker.Claim(ctx, claimed(e.name), tick, claim...)
	if event.Err = err; err != nil {
		return missedHook, event
	}
	if !won {
		return elsewhereHook, event
	}
	if early > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(e.s.ctx, end.Add(early))
		defer cancel()
		pauseFor(ctx, early)
	}
	opts := append(e.opts[:len(e.opts):len(e.opts)], asynq.TaskID(fmt.Sprintf("%s@%d", e.name, tick.Unix())))
	for {
		event.Info, err = e.s.client.EnqueueContext(ctx, e.task, opts...)
		if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) { // our own earlier try, whose answer was lost
			event.Err = nil
			return enqueuedHook, event
		}
		if event.Err = err; errors.Is(err, asynq.ErrDuplicateTask) {
			return missedHook, event
		}
		if pauseFor(ctx, pause); ctx.Err() != nil {
			return missedHook, event
		}
	}
}

// pause is how long a replica waits before it tries again if Redis did not answer.
const pause = 200 * time.Millisecond
