//go:build !without_asynq

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/holdfast-go/holdfast/core"
	"golang.org/x/sync/errgroup"
)

// taskPlan is what the part "tasks" measures.
type taskPlan struct {
	servers  []int
	takes    time.Duration // for each task of the key that many want
	burst    int           // tasks of that key
	requests int
	backlogs []int // tasks of that key, while others come
}

const (
	requestTakes = 100 * time.Millisecond
	requestPause = 250 * time.Millisecond
	coldPause    = 100 * time.Millisecond
)

// ownQueue is where the floor has the tasks of the key that many want.
const ownQueue = "own"

func (p plan) tasks(ctx context.Context, _ *server) (table, error) {
	return taskPlan{[]int{1, 3}, 50 * time.Millisecond, 60, 20, []int{10_000, 40_000}}.measure(ctx, p.rounds, p.duration)
}

// demand is what one measurement has asynq's servers do.
type demand struct {
	name  string
	hot   int           // tasks of one key, enqueued at once
	cold  int           // tasks of a key of their own each, enqueued one after the other
	pause time.Duration // between those
	held  bool          // a request has the key of each of those
	takes time.Duration // for a hot task; a cold one returns at once
}

func (d demand) tasks() int { return max(d.hot, d.cold) }

func (t taskPlan) demands(window time.Duration) []demand {
	all := []demand{
		{name: "burst", hot: t.burst, takes: t.takes},
		{name: "request", cold: min(t.requests, int(window/requestPause)), pause: requestPause, held: true},
	}
	for _, n := range t.backlogs {
		all = append(all, demand{name: "backlog", hot: n, cold: int(window / coldPause), pause: coldPause, takes: t.takes})
	}
	return slices.DeleteFunc(all, func(d demand) bool { return d.tasks() == 0 })
}

// effort is one measurement.
type effort struct {
	time, runs      float64 // of the ideal
	p50, p99, worst float64 // ms until a cold task starts
	deferrals       float64 // for each task
	redis           float64 // ms of the server's processor time, likewise
	left            int     // tasks that had not run at the end
	clashes         int
	failures        int
	reason          string
}

func (e effort) trouble() (int, string) { return e.failures, e.reason }

var effortColumns = []column[effort]{
	typical("time/ideal", 2, func(e effort) float64 { return e.time }),
	typical("runs/ideal", 3, func(e effort) float64 { return e.runs }),
	typical("p50 ms", 0, func(e effort) float64 { return e.p50 }),
	typical("p99 ms", 0, func(e effort) float64 { return e.p99 }),
	typical("longest ms", 0, func(e effort) float64 { return e.worst }),
	typical("deferrals", 2, func(e effort) float64 { return e.deferrals }),
	typical("Redis ms", 3, func(e effort) float64 { return e.redis }),
	total("left", func(e effort) int { return e.left }),
	total("clashes", func(e effort) int { return e.clashes }),
	failed[effort](),
}

const effortLegend = "floor: no lock, but a queue and a worker for that key alone, and asynq set up alike in all else. time/ideal: until all of a burst have run, of the time " +
	"that they take one after the other. runs/ideal: those of a backlog, likewise. p50, p99 and longest: from when a task of a key of its own is enqueued until it starts. deferrals and " +
	"Redis (its processor time): for each task, from when all of one key are enqueued. left: tasks that had not run at the end; they count as if they had started or ended then. " +
	"clashes: runs that began before the one before had ended. failed: tasks that were lost or ran twice."

func (t taskPlan) measure(ctx context.Context, rounds int, window time.Duration) (table, error) {
	var all []row[effort]
	for _, d := range t.demands(window) {
		for _, servers := range t.servers {
			names := []string{us}
			if servers == 1 && !d.held {
				names = []string{bare, us}
			}
			rows, err := interleave(rounds, names, func(i int) (effort, error) {
				return d.measure(ctx, servers, names[i] == us, window)
			}, d.name, d.tasks(), servers)
			if err != nil {
				return table{}, fmt.Errorf("%s: %w", d.name, err)
			}
			all = append(all, rows...)
		}
	}
	return tabulate(fmt.Sprintf("Tasks of asynq %s under asynqlock as its README sets it up, on servers of 10 workers: a burst of tasks of one key, each of %v; tasks each of which "+
		"finds that a request has its key, for %v or until a server has found the task; and a backlog of one key, while a task of another key comes every %v. Until all have run, but for %v at most.",
		version("github.com/hibiken/asynq"), t.takes, requestTakes, coldPause, window), []string{"load", "tasks", "servers", ""}, effortColumns, all, effortLegend), nil
}

// measure starts a Redis and servers in processes of their own. The tasks of one key are enqueued while their queue is paused.
func (d demand) measure(ctx context.Context, servers int, guarded bool, window time.Duration) (e effort, err error) {
	s, err := startServer()
	if err != nil {
		return e, err
	}
	defer s.Close()
	t := newTarget(s.addr, 0)
	defer t.close()
	locker, err := holdfast.New(t.rdb)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, shutDown(locker)) }()
	team, err := launchTeam(ctx, servers, taskFlag, "-addr", s.addr, "-guarded="+strconv.FormatBool(guarded))
	if err != nil {
		return e, err
	}
	defer team.close()

	desk := &desk{client: asynq.NewClientFromRedisClient(t.rdb), inspector: asynq.NewInspectorFromRedisClient(t.rdb)}
	queue := "default"
	if !guarded {
		queue = ownQueue
	}
	if err := desk.inspector.PauseQueue(queue); err != nil {
		return e, err
	}
	for range d.hot {
		if _, err := desk.enqueue(ctx, queue, "hot", d.takes); err != nil {
			return e, err
		}
	}
	before, err := t.processorTime(ctx)
	if err != nil {
		return e, err
	}
	from := now()
	if err := desk.inspector.UnpauseQueue(queue); err != nil {
		return e, err
	}
	var requests errgroup.Group
	for i := range d.cold {
		if err := pause(ctx, time.Duration(from+int64(i)*int64(d.pause)-now())); err != nil {
			return e, err
		}
		account := fmt.Sprint("cold:", i)
		if !d.held {
			if _, err := desk.enqueue(ctx, "default", account, 0); err != nil {
				return e, err
			}
			continue
		}
		began := time.Now()
		lock, err := locker.Acquire(ctx, holdfast.Key("account", account))
		if err != nil {
			return e, err
		}
		id, err := desk.enqueue(ctx, "default", account, 0)
		if err != nil {
			return e, err
		}
		requests.Go(func() error {
			for desk.pending(id) { // or the two would not meet
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(max(requestTakes-time.Since(began), requestTakes/5))
			return lock.Release(context.WithoutCancel(ctx))
		})
	}
	for left := 1; left > 0 && now() < from+int64(window); {
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return e, err
		}
		if left, err = desk.left(); err != nil {
			return e, err
		}
	}
	to := now()
	after, err := t.processorTime(ctx)
	if err != nil {
		return e, err
	}
	toils, err := collect[toil](team)
	if err := errors.Join(err, requests.Wait()); err != nil {
		return e, err
	}
	left, err := desk.left()
	if err != nil {
		return e, err
	}
	e = d.judge(desk.sent, toils, from, to, left)
	e.redis = (after - before) * 1e3 / float64(d.tasks())
	return e, nil
}

// judge looks at what happened from from to to. The first of sent, when tasks were enqueued, are the hot ones'.
func (d demand) judge(sent []int64, toils []toil, from, to int64, left int) effort {
	e := effort{time: math.NaN(), runs: math.NaN(), left: left}
	began, twice := map[int]int64{}, 0
	var hot []stint
	for _, t := range toils {
		e.deferrals += float64(t.Deferrals) / float64(d.tasks())
		for _, s := range t.Stints {
			if began[s.N] != 0 {
				twice++
			}
			began[s.N] = s.Began
			if s.N < d.hot {
				hot = append(hot, s)
			}
		}
	}
	lost := len(sent) - len(began) - left
	if e.failures = max(lost, -lost) + twice; e.failures > 0 {
		e.reason = fmt.Sprintf("of %d tasks %d ran, %d of them twice, and %d were left", len(sent), len(began), twice, left)
	}

	slices.SortFunc(hot, func(a, b stint) int { return cmp.Compare(a.Began, b.Began) })
	last, ran := from, 0
	for _, s := range hot {
		if s.Began < last {
			e.clashes++
		}
		if last = max(last, s.Ended); s.Ended <= to {
			ran++
		}
	}
	switch ideal := float64(d.takes) * float64(d.hot); {
	case d.cold == 0 && left > 0:
		e.time = float64(to-from) / ideal
	case d.cold == 0:
		e.time = float64(last-from) / ideal
	case d.hot > 0:
		e.runs = float64(ran) * float64(d.takes) / min(float64(to-from), ideal)
	}

	var starts []float64
	for i, at := range sent[d.hot:] {
		starts = append(starts, float64(cmp.Or(began[d.hot+i], to)-at)/1e6)
	}
	slices.Sort(starts)
	e.p50, e.p99, e.worst = quantile(starts, 0.5), quantile(starts, 0.99), quantile(starts, 1)
	return e
}
