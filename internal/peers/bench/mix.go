package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
)

// A service's mix: most keys are free, a few are wanted by many, and all are held for a moment.
const (
	mixCallers = 200
	mixKeys    = 10_000
	mixSkew    = 1.1 // of Zipf's law
	mixHead    = 50  // what is added to the rank of a key: the first has 0.5 % of the calls; with 1 it would have 15 %, and nothing else would count
	mixWork    = 5 * time.Millisecond
)

const polling = "polling"

// mixers contend in turns, the peers behind these. The first one is what a service does by hand: it polls, as quickly as
// the peers that poll.
var mixers = []rival{
	{polling, goRedis, sentBySetters, openPeer(peers.Plain, peers.Settings{Pause: func(tries int) time.Duration { return min(lookLate, 2*time.Millisecond<<min(tries, 10)) }})},
	{us, goRedis, sentByHoldfast, openHoldfast()},
}

// blend is one measurement of one contender.
type blend struct {
	rate     float64 // cycles per second
	p50, p99 float64 // ms of an acquire
	client   float64 // µs of this process' processor time, per cycle
	failures int
	reason   string
}

func (b blend) trouble() (int, string) { return b.failures, b.reason }

var blendColumns = []column[blend]{
	typical("cycles/s", 0, func(b blend) float64 { return b.rate }),
	ratio("ratio", func(b blend) float64 { return b.rate }),
	typical("p50 ms", 1, func(b blend) float64 { return b.p50 }),
	typical("p99 ms", 1, func(b blend) float64 { return b.p99 }),
	typical("client µs", 1, func(b blend) float64 { return b.client }),
	failed[blend](),
}

func (p plan) mix(ctx context.Context, near *server) (table, error) {
	relay, err := startRelay(ctx, near.addr, farther)
	if err != nil {
		return table{}, err
	}
	defer relay.close()
	var all []row[blend]
	for _, pool := range []int{20, 64} {
		for _, client := range clients {
			rows, err := interleave(p.rounds, names(mixers), func(i int) (blend, error) {
				return p.blend(ctx, mixers[i], newTargetWith(relay.addr, pool, client.timeouts))
			}, pool, client.name)
			if err != nil {
				return table{}, err
			}
			all = append(all, rows...)
		}
	}
	title := fmt.Sprintf("%d callers take keys of %d by Zipf's law (%v, the first has 0.5 %% of the calls) and hold each for %v, with %v of round-trip time added; medians of %d rounds of %v.",
		mixCallers, mixKeys, mixSkew, mixWork, farther, p.rounds, p.duration)
	return tabulate(title, []string{"connections", "client", ""}, blendColumns, all, "ratio: of cycles/s to the first line's, which polls every 4 to 16 ms. p50, p99: of an acquire. "+
		"client µs: processor time of a cycle. rueidislock has one connection of its own."), nil
}

func (p plan) blend(ctx context.Context, r rival, t *target) (b blend, err error) {
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.rdb.FlushAll(ctx).Err(); err != nil {
		return b, err
	}
	w, err := r.open(t)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	inside, stop := context.WithTimeout(ctx, endless)
	defer stop()
	logs, wg := make([]cycleLog, mixCallers), sync.WaitGroup{}
	from := now() + int64(min(p.duration/3, 250*time.Millisecond)) // connections, scripts, the rush
	to := from + int64(p.duration)
	for i := range logs {
		wg.Go(func() { logs[i].blend(inside, w, uint64(i), from, to) })
	}
	err = pause(ctx, time.Duration(from-now()))
	used := processorTime()
	err = errors.Join(err, pause(ctx, time.Duration(to-now())))
	used = processorTime() - used
	stop()
	wg.Wait()
	var took []float64
	for _, l := range logs {
		took = append(took, l.took...)
		if b.failures += l.failures; l.reason != "" {
			b.reason = l.reason
		}
	}
	slices.Sort(took)
	b.rate, b.client = float64(len(took))/p.duration.Seconds(), used*1e6/float64(len(took))
	b.p50, b.p99 = quantile(took, 0.50)/1e3, quantile(took, 0.99)/1e3
	return b, err
}

// blend takes locks until ctx ends, and records those that it got between from and to.
func (l *cycleLog) blend(ctx context.Context, w waiter, seed uint64, from, to int64) {
	random := rand.New(rand.NewPCG(seed, 1))
	keys := rand.NewZipf(random, mixSkew, mixHead, mixKeys-1)
	for ctx.Err() == nil {
		asked := now()
		lock, err := w.acquire(ctx, "mix:"+strconv.FormatUint(keys.Uint64(), 10))
		got := now()
		if err == nil {
			time.Sleep(mixWork)
			err = lock.Release(context.WithoutCancel(ctx))
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			l.failures, l.reason = l.failures+1, err.Error()
			time.Sleep(time.Millisecond) // so that what fails at once does not spin
		case got >= from && got < to:
			l.took = append(l.took, float64(got-asked)/1e3)
		}
	}
}
