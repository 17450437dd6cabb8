package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// refusal is one measurement of tries that fail, as somebody else holds the key.
type refusal struct {
	p50, p99 float64 // µs
	commands float64 // per try, sent by the client
	failures int     // tries that succeeded
}

var errNotRefused = errors.New("a try got a lock that another has")

func (r refusal) trouble() (int, string) { return r.failures, errNotRefused.Error() }

var refusalColumns = []column[refusal]{
	typical("commands", 2, func(r refusal) float64 { return r.commands }),
	typical("p50 µs", 0, func(r refusal) float64 { return r.p50 }),
	typical("p99 µs", 0, func(r refusal) float64 { return r.p99 }),
	failed[refusal](),
}

// refused measures tries for a key that a holder of the same kind has, through a client of its own.
func (p plan) refused(ctx context.Context, server *server) (table, error) {
	open := make([][2]waiter, len(soloists))
	targets := make([]*target, len(soloists))
	for i, r := range soloists {
		targets[i] = newTarget(server.addr, 0)
		defer targets[i].close()
		for k := range open[i] {
			w, err := r.open(targets[i])
			if err != nil {
				return table{}, fmt.Errorf("%s: %w", r.name, err)
			}
			defer w.close()
			open[i][k] = w
		}
	}
	rows, err := interleave(p.rounds, names(soloists), func(i int) (refusal, error) {
		lock, err := open[i][0].acquire(ctx, hot)
		if err != nil {
			return refusal{}, err
		}
		r, err := targets[i].refuse(ctx, soloists[i], open[i][1], p.duration)
		defer time.Sleep(settle)
		return r, errors.Join(err, lock.Release(ctx))
	})
	return tabulate(fmt.Sprintf("Tries that fail at once, for a key that another client holds; medians of %d rounds of %v.",
		p.rounds, p.duration), []string{""}, refusalColumns, rows, "commands: sent by the client, per try."), err
}

func (t *target) refuse(ctx context.Context, r rival, w waiter, d time.Duration) (s refusal, err error) {
	for range 3 { // teaches the server the scripts, and opens connections
		_, _ = w.try(ctx, hot)
	}
	if err := t.resetStats(ctx); err != nil {
		return s, err
	}
	var took []float64
	for began := time.Now(); time.Since(began) < d || len(took) == 0; {
		start := time.Now()
		lock, err := w.try(ctx, hot)
		took = append(took, micros(time.Since(start)))
		if err == nil {
			s.failures++
			_ = lock.Release(ctx)
		}
		if err := ctx.Err(); err != nil {
			return s, err
		}
	}
	stats, err := t.stats(ctx)
	sent, _ := stats.split(r.sends)
	slices.Sort(took)
	s.p50, s.p99 = quantile(took, 0.50), quantile(took, 0.99)
	s.commands = float64(sent.calls) / float64(len(took))
	return s, err
}
