package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// setting is the crowd that wants the key.
type setting struct {
	goroutines int  // of each process
	lockers    int  // of this process
	processes  int  // beside this one, which then has no part in it; 0 for this one
	once       bool // each goroutine takes one turn, all behind a holder
}

func (s setting) open(ctx context.Context, r rival, addr string, pool int) (team, error) {
	if s.processes > 0 {
		return openProcessTeam(ctx, r, addr, s, pool)
	}
	return openLocalTeam(ctx, r, addr, s, pool)
}

// contend measures all rivals in one setting.
func (p plan) contend(ctx context.Context, t *target, s setting) ([]row[score], error) {
	measure := p.bout
	if s.once {
		measure = p.serve
	}
	return interleave(p.rounds, names(p.rivals), func(i int) (score, error) {
		return measure(ctx, t, s, p.rivals[i])
	}, s.goroutines)
}

// bout is one measurement. Nothing of the other rivals is open meanwhile, so that what their connections and
// Lockers do while idle is not counted here.
func (p plan) bout(ctx context.Context, t *target, s setting, r rival) (_ score, err error) {
	if err := t.rdb.FlushAll(ctx).Err(); err != nil {
		return score{}, err
	}
	trip, err := roundTrip(ctx, r, t.addr)
	if err != nil {
		return score{}, err
	}
	team, err := s.open(ctx, r, t.addr, p.pool)
	if err != nil {
		return score{}, err
	}
	defer func() { err = errors.Join(err, team.close()) }()
	runtime.GC()

	if err := team.begin(ctx); err != nil {
		return score{}, err
	}
	// What comes first is not measured: connections, subscriptions, the rush to the free key.
	if err := pause(ctx, min(p.duration/3, 250*time.Millisecond)); err != nil {
		return score{}, err
	}
	var sent stats
	from, to, err := t.watch(ctx, p.duration, &sent)
	if err != nil {
		return score{}, err
	}
	diaries, err := team.end()
	if err != nil {
		return score{}, err
	}
	return judge(diaries, from, to).with(r, trip, sent), nil
}

// watch collects the server's statistics for d and returns from when to when, in ns by now.
func (t *target) watch(ctx context.Context, d time.Duration, s *stats) (from, to int64, err error) {
	if err := t.resetStats(ctx); err != nil {
		return 0, 0, err
	}
	from = now()
	if err := pause(ctx, d); err != nil {
		return 0, 0, err
	}
	to = now()
	*s, err = t.stats(ctx)
	return from, to, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// choose returns those of all with the given names, or all without names.
func choose(all []rival, names []string) ([]rival, error) {
	if len(names) == 0 {
		return all, nil
	}
	var chosen []rival
	for _, name := range names {
		i := slices.IndexFunc(all, func(r rival) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("nobody is called %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
