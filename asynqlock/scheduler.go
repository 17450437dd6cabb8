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

// Scheduler enqueues tasks by the clock, as [asynq.Scheduler] does, and may run on every replica: each tick is
// enqueued by one of them. Make it with [NewScheduler].
//
// A tick is the nominal time, and the same on all replicas: "*/5 * * * *" has one at 12:05:00 in the location's time, and
// "@every 5m" one at each multiple of 5 min since 1970, whenever the replica was started. Before it enqueues, a replica claims
// the tick with [holdfast.Locker.Claim], of holdfast.Key("asynq", name): so the replicas need not have the same time, a task
// may be over before a slow replica gets there, and replicas may come and go. At most one enqueues, and one does, unless no
// replica with a clock as below reaches Redis within the bound of [WithLateness], or the one that has claimed dies, or cannot
// enqueue, before it has.
//
// The claims live in the Locker's Redis until their tick is more than an hour old. Where Redis loses one in that time, as in
// a restart without persistence, its tick may be enqueued again; the same goes for a clock of Redis that is set forward by
// more than an hour, and then back. A job of cronlock may have the same name. Unlike asynq's own, a Scheduler is not listed
// among the Inspector's SchedulerEntries.
//
// A replica whose clock is ahead waits until the tick has come by the clock of Redis (TIME); one that is off by more than 1 s is
// warned about once, by slog. One that is ahead by more than 10 s, or behind by more than 1 h, enqueues nothing, see
// [WithClaim]. With a Locker on several masters there is no such clock, and a replica enqueues as much too early as its own is
// ahead.
type Scheduler struct {
	locker *holdfast.Locker
	client *asynq.Client
	cron   *cron.Cron
	schedulerConfig

	ctx  context.Context // ends when Shutdown loses patience
	stop context.CancelFunc

	mu      sync.Mutex
	entries map[string]cron.EntryID
	state   state

	skewed sync.Once // it is said once
}

// NewScheduler returns a Scheduler that enqueues into the Redis of the Locker, or into that of [WithRedis].
//
// It judges the Locker and all options, and panics with an error that names each mistake: it matches [holdfast.ErrInvalid].
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

// state is what Start and Shutdown have made of a Scheduler.
type state uint8

const (
	fresh state = iota
	running
	closed
)

// Register has task enqueued at each tick of spec: five fields, or a descriptor such as @daily or @every 10s, as
// asynq's own Scheduler takes them. name is the entry's on all replicas, and no other may have it, in the whole Redis:
// the replicas that use it exclude each other. Register and Unregister may be called at any time.
//
// The task gets an ID of its own for each tick, the name and the Unix time: "invoices@1795271400". [Tick] reads it
// for the handler. opts are asynq's, and may not name an ID.
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
		return invalid("Register(%q, %q): it never comes to that", spec, name)
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
		return invalid("Register(%q, %q): there is an entry of this name", spec, name)
	}
	e.id = s.cron.Schedule(schedule, e)
	s.entries[name] = e.id
	return nil
}

// checkClaim has the Locker judge the options.
func checkClaim(locker *holdfast.Locker, claim []holdfast.ClaimOption) error {
	opts := make([]holdfast.Option, len(claim))
	for i, o := range claim {
		opts[i] = o
	}
	return locker.Check(claimed("name"), opts...)
}

// claimed is the name of what an entry's ticks are claimed of: not that of a lock or a cron job which is called like it.
func claimed(name string) string { return holdfast.Key("asynq", name) }

// checkName has the Locker judge it.
func (s *Scheduler) checkName(name string) error {
	for _, n := range []string{name, claimed(name)} {
		if err := s.locker.Check(n); err != nil {
			return fmt.Errorf("asynqlock: %w", err)
		}
	}
	return nil
}

// Unregister ends the ticks of name, on this replica. Of an entry that does not exist it returns a [holdfast.ErrInvalid].
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
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM) // none is lost once Start has returned
	defer signal.Stop(signals)
	if err := s.Start(); err != nil {
		return err
	}
	<-signals
	s.Shutdown()
	return nil
}

// Start begins with the next tick of each entry. It does not block. A Scheduler can be started once.
//
// Errors: [holdfast.ErrInvalid] for one that runs, [holdfast.ErrClosed] for one that was shut down.
func (s *Scheduler) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case running:
		return invalid("Start: the Scheduler runs already")
	case closed:
		return fmt.Errorf("asynqlock: Start: the Scheduler was shut down: %w", holdfast.ErrClosed)
	}
	s.state = running
	s.cron.Start()
	return nil
}

// shutdownTimeout is that of asynq's Server, by default.
const shutdownTimeout = 8 * time.Second

// Shutdown ends the ticks and waits for what is being enqueued: for up to 8 s, as asynq's Server waits for its handlers.
// A tick takes longer only where Redis does not answer; it is then missed on this replica. Shut the Scheduler down before
// the Locker. A Scheduler that was shut down before its Start cannot be started.
func (s *Scheduler) Shutdown() {
	s.mu.Lock()
	before := s.state
	s.state = closed
	s.mu.Unlock() // which a tick wants
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

// Run is one tick.
func (e *entry) Run() {
	e.s.mu.Lock() // id is written
	id := e.id
	e.s.mu.Unlock()
	// cron sets Prev right after it has started this, in the loop that answers here: so it is the tick that this is
	// about, unless the next one has come in the meantime, which then is claimed twice and granted once.
	due := e.s.cron.Entry(id).Prev
	if due.IsZero() {
		return // removed in the meantime
	}
	e.at(due)
}

// at is the tick that is due then, by the clock of this replica.
func (e *entry) at(due time.Time) {
	tick := due.Add(e.ahead)
	// From the tick, and not from now: a machine that was suspended is late.
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

// tick claims the tick, and enqueues its task if it is granted, early from then: so early is one that a window of WithClaim
// grants. Both are tried until ctx ends.
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
		if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) { // of an earlier try, whose answer was lost: nobody else has this ID
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

// pause is how long a replica waits before it enqueues again where Redis did not answer.
const pause = 200 * time.Millisecond
