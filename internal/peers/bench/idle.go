package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
)

// quiet is what a queue costs while nothing happens.
type quiet struct {
	waiters  int
	commands float64 // per second
	failures int
	reason   string
	clashes  int
}

func (q quiet) trouble() (int, string) { return q.failures, q.reason }

var idleColumns = []column[quiet]{
	typical("commands/s", 1, func(q quiet) float64 { return q.commands }),
	typical("for each waiter", 2, func(q quiet) float64 { return q.commands / float64(q.waiters) }),
	failed[quiet](),
	total("clashes", func(q quiet) int { return q.clashes }),
}

var idleSizes = []int{1, 16, 64}

// sideBySide bounds how many waiters are measured at a time. Below it, those that poll leave each other enough of
// the processors to poll as often as they want.
const sideBySide = 256

// idle measures queues that do not move. Each measurement takes seconds, so one rival's are taken side by side.
func (p plan) idle(ctx context.Context, _ *server) (table, error) {
	var settings []setting
	for _, n := range p.choose(idleSizes) {
		settings = append(settings, setting{goroutines: n, lockers: 1})
		if n > 1 {
			settings = append(settings, setting{goroutines: n, lockers: n})
		}
	}
	var all []row[quiet]
	for len(settings) > 0 {
		n, waiters := 1, settings[0].goroutines
		for n < len(settings) && waiters+settings[n].goroutines <= sideBySide {
			waiters += settings[n].goroutines
			n++
		}
		group := make([][]quiet, len(p.rivals))
		for i, r := range p.rivals {
			var err error
			if group[i], err = p.standAll(ctx, r, settings[:n]); err != nil {
				return table{}, fmt.Errorf("%s: %w", r.name, err)
			}
		}
		for k, s := range settings[:n] {
			for i, r := range p.rivals {
				all = append(all, row[quiet]{labels: []any{s.goroutines, s.lockers, r.name}, samples: group[i][k : k+1]})
			}
		}
		settings = settings[n:]
	}
	return tabulate(fmt.Sprintf("Waiters behind a holder elsewhere that stays, for %v.", p.idling),
		[]string{"waiters", "Lockers", ""}, idleColumns, all, ""), nil
}

func (p plan) standAll(ctx context.Context, r rival, settings []setting) ([]quiet, error) {
	results, failures := make([]quiet, len(settings)), make([]error, len(settings))
	var wg sync.WaitGroup
	for i, s := range settings {
		wg.Go(func() { results[i], failures[i] = p.stand(ctx, r, s) })
	}
	wg.Wait()
	return results, errors.Join(failures...)
}

// stand measures one queue, on a server of its own.
func (p plan) stand(ctx context.Context, r rival, s setting) (_ quiet, err error) {
	server, err := startServer()
	if err != nil {
		return quiet{}, err
	}
	defer server.Close()
	t := newTarget(server.addr, 1)
	defer t.close()
	q, err := p.openQueue(ctx, server.addr, r, s)
	if err != nil {
		return quiet{}, err
	}
	defer func() { err = errors.Join(err, q.close()) }()

	var sent stats
	from, to, err := t.watch(ctx, p.idling, &sent)
	if err != nil {
		return quiet{}, err
	}
	diaries, err := q.disperse()
	if err != nil {
		return quiet{}, err
	}
	if err := q.holds.Release(ctx); err != nil {
		return quiet{}, err
	}
	commands, _ := sent.split(r.sends)
	result := quiet{waiters: s.goroutines, commands: float64(commands.calls) / (float64(to-from) / 1e9)}
	for _, d := range diaries {
		result.failures += d.Failures
		result.reason = cmp.Or(result.reason, d.Reason)
		result.clashes += len(d.Holds) // somebody had the key beside the holder
	}
	return result, nil
}
