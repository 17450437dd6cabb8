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
	"github.com/holdfast-go/holdfast/core/tick"
	"github.com/holdfast-go/holdfast/internal/adapter/ticks"
	"github.com/robfig/cron/v3"
)

// Scheduler enqueues tasks by the clock, like [asynq.Scheduler]. It can run on every replica: each tick is enqueued by one
// of them.
//
// A tick is a nominal time, the same on all replicas: "*/5 * * * *" has one at 12:05:00 in the Scheduler's location,
// "@every 5m" at each multiple of 5 min since 1970, whenever the replica was started, and "@every 24h" at midnight UTC. A
// period is rounded down to whole seconds.
//
// Before a replica enqueues a task, it claims the tick by a [tick.Clock], under the name holdfast.Key("asynq", name): at
// most one gets it, and none before the tick has come by the clock of Redis, except with several masters. A replica whose
// clock is ahead by more than 10 s, or behind by more than 1 h, enqueues nothing: see [WithClaim].
//
// No replica enqueues a tick if none reaches Redis within the bound of [WithLateness], or if the one that claimed it
// dies. If Redis loses a claim within an hour, as in a restart without persistence, or if its clock is set forward by
// more than an hour and back, a tick can be enqueued again.
//
// asynq's Inspector, and so asynqmon, lists the entries. They are written every 10 s, to the keys asynq:schedulers (ZADD,
// ZREM) and asynq:schedulers:{...} (DEL, LPUSH, EXPIRE), if an ACL allows that.
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

	unlist   context.CancelFunc
	unlisted chan struct{} // closed when the entries are listed no more

	clock tick.Clock
}

// NewScheduler returns a Scheduler that enqueues into the Locker's Redis, or into that of [WithRedis]. It panics as [New]
// does.
func NewScheduler(locker *holdfast.Locker, opts ...SchedulerOption) *Scheduler {
	s := &Scheduler{locker: locker, schedulerConfig: schedulerDefaults(), entries: map[string]cron.EntryID{}}
	for _, o := range opts {
		if o == nil {
			s.mistakes.Refuse("a nil option")
			continue
		}
		o.scheduler(&s.schedulerConfig)
	}
	if s.lateness != nil && *s.lateness <= 0 {
		s.mistakes.Refuse("WithLateness(%v): want more than 0", *s.lateness)
	}
	if locker == nil {
		s.mistakes.Refuse("no Locker")
	} else if err := tick.Check(locker, claimed("name"), s.claim...); err != nil {
		s.mistakes.Refuse("WithClaim: %v", err)
	}
	s.redis = tasksIn(&s.mistakes, locker, s.redis)
	if err := s.mistakes.Err("asynqlock: NewScheduler"); err != nil {
		panic(err)
	}
	s.client = asynq.NewClientFromRedisClient(s.redis)
	s.cron = cron.New(cron.WithLocation(s.location))
	s.clock.Locker, s.clock.Now = locker, func() time.Time { return time.Now().Add(s.ahead) }
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

// Register adds an entry, at any time: task is enqueued at each tick of spec, which has five fields, or is a descriptor
// such as @daily or @every 10s. name names the entry on all replicas, and no other entry in the whole Redis. Each tick's
// task gets an ID such as "invoices@1795271400", which [Tick] reads: opts must not set one.
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
	e := &entry{s: s, name: name, spec: spec, task: task, opts: opts, ahead: s.ahead}
	if s.lateness != nil {
		e.lateness = *s.lateness
	} else {
		e.lateness = min(schedule.Next(first).Sub(first)/2, defaultLateness)
	}
	if s.ahead != 0 {
		schedule = ticks.Skewed{Schedule: schedule, Ahead: s.ahead}
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

// Run starts the Scheduler, waits until the process receives SIGINT or SIGTERM, and shuts it down.
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

// Start starts the ticks and returns.
//
// Errors: [holdfast.ErrInvalid] if it was started before, [holdfast.ErrClosed] if it was shut down.
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
	var ctx context.Context
	ctx, s.unlist = context.WithCancel(s.ctx)
	s.unlisted = make(chan struct{})
	s.cron.Start()
	go func() {
		defer close(s.unlisted)
		s.list(ctx)
	}()
	return nil
}

// shutdownTimeout is the default of asynq's Server.
const shutdownTimeout = 8 * time.Second

// Shutdown ends the ticks and waits for those that are being enqueued, for up to 8 s. Then they are missed on this replica.
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
	s.unlist()
	<-s.cron.Stop().Done()
	select {
	case <-s.unlisted:
	case <-time.After(noteBound): // Redis does not answer, and the list expires
	}
}

// entry is the job that cron runs.
type entry struct {
	s        *Scheduler
	name     string
	spec     string
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
	e.at(due)
}

// at runs the tick that is due at that time, by the clock of this replica.
func (e *entry) at(due time.Time) {
	hook, event := e.tick(due.Round(0).Add(e.ahead)) // without the monotonic clock, which stands still while a machine sleeps
	e.s.tell(e.s.ctx, hook, event)
}

// tick claims the tick and, if it is granted, enqueues the task. It keeps trying both until that would be too late.
func (e *entry) tick(at time.Time) (hook, Event) {
	event := Event{Name: e.name, Tick: at}
	until, won, err := e.s.clock.Claim(e.s.ctx, claimed(e.name), at, e.lateness, e.s.claim...)
	if event.Err = err; err != nil {
		return missedHook, event
	}
	if !won {
		return elsewhereHook, event
	}
	ctx, cancel := context.WithDeadline(e.s.ctx, until)
	defer cancel()
	opts := append(e.opts[:len(e.opts):len(e.opts)], asynq.TaskID(fmt.Sprintf("%s@%d", e.name, at.Unix())))
	for {
		event.Info, err = e.s.client.EnqueueContext(ctx, e.task, opts...)
		if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) { // our own earlier try, whose answer was lost
			event.Err = nil
			return enqueuedHook, event
		}
		if event.Err = err; errors.Is(err, asynq.ErrDuplicateTask) {
			return elsewhereHook, event // the task of an earlier tick is still queued, which is what asynq.Unique is for
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return missedHook, event
		}
	}
}

// pause is how long a replica waits before it tries again if Redis did not answer.
const pause = 200 * time.Millisecond
