package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// endless is the deadline of waits that are ended by other means; some rivals give up early without one.
	endless = time.Hour
	// patience is how long the goroutines of a crowd may take to notice the end.
	patience = 30 * time.Second
)

// team is goroutines of one rival that are ready to contend.
type team interface {
	begin(ctx context.Context) error
	// end stops what begin started and closes the team.
	end() ([]diary, error)
	// close is for a team that never came to its end; after end it does nothing.
	close() error
}

// lockers is a number of one rival's Lockers, each with a client of its own.
type lockers struct {
	waiters []waiter
	targets []*target
}

// openLockers opens them and has each take and release a lock, for the connections and the script cache.
func openLockers(ctx context.Context, r rival, addr string, n, pool int) (*lockers, error) {
	l := &lockers{}
	for i := range n {
		t := newTarget(addr, pool)
		l.targets = append(l.targets, t)
		w, err := r.open(t)
		if err == nil {
			l.waiters = append(l.waiters, w)
			err = warm(ctx, w, fmt.Sprintf("bench:warm:%d", i))
		}
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

func warm(ctx context.Context, w waiter, key string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock, err := w.acquire(ctx, key)
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}

func (l *lockers) close() error {
	var failed error
	for _, w := range l.waiters {
		failed = errors.Join(failed, w.close())
	}
	for _, t := range l.targets {
		failed = errors.Join(failed, t.close())
	}
	l.waiters, l.targets = nil, nil
	return failed
}

// roundTrip returns the median of what a PING takes while nothing else happens, in µs.
func roundTrip(ctx context.Context, r rival, addr string) (float64, error) {
	l, err := openLockers(ctx, r, addr, 1, 0)
	if err != nil {
		return 0, err
	}
	defer l.close()
	var trips []float64
	for end := now() + int64(50*time.Millisecond); now() < end; {
		start := now()
		if err := l.waiters[0].ping(ctx); err != nil {
			return 0, err
		}
		trips = append(trips, float64(now()-start)/1e3)
	}
	slices.Sort(trips)
	return quantile(trips, 0.5), nil
}

// localTeam contends within this process.
type localTeam struct {
	*lockers
	crowd *crowd
	stop  context.CancelFunc
}

func openLocalTeam(ctx context.Context, r rival, addr string, s setting, pool int) (*localTeam, error) {
	l, err := openLockers(ctx, r, addr, s.lockers, pool)
	if err != nil {
		return nil, err
	}
	return newLocalTeam(l, l.waiters, s), nil
}

func newLocalTeam(l *lockers, contending []waiter, s setting) *localTeam {
	return &localTeam{l, newCrowd(contending, s), func() {}}
}

func (t *localTeam) begin(ctx context.Context) error {
	ctx, t.stop = context.WithTimeout(ctx, endless)
	t.crowd.gather(ctx)
	return nil
}

func (t *localTeam) disperse() ([]diary, error) {
	t.stop()
	if err := t.crowd.wait(patience); err != nil {
		return nil, err
	}
	t.crowd.diaries[0].Clashes += t.crowd.lost()
	return t.crowd.diaries, nil
}

func (t *localTeam) end() ([]diary, error) {
	diaries, err := t.disperse()
	return diaries, errors.Join(err, t.close())
}

func (t *localTeam) close() error {
	t.stop()
	return t.lockers.close()
}
