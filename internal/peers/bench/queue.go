package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// stranded is how long a queue may take in which everybody takes one turn. A taker that has not had it by then waits for a
// message that got lost, of a release long ago.
const stranded = 5 * time.Second

// queue is a crowd that waits behind a holder.
type queue struct {
	*localTeam
	holds held
}

// openQueue returns once all wait, and the holder, in a Locker of its own, holds.
func (p plan) openQueue(ctx context.Context, addr string, r rival, s setting) (*queue, error) {
	l, err := openLockers(ctx, r, addr, s.lockers+1, p.pool)
	if err != nil {
		return nil, err
	}
	q := &queue{localTeam: newLocalTeam(l, l.waiters[1:], s)}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if q.holds, err = l.waiters[0].acquire(limited, hot); err == nil {
		err = q.begin(ctx)
	}
	if err == nil {
		err = pause(ctx, p.settle)
	}
	if err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

// serve measures how a queue gets through in which each waits for one turn. Where goroutines come back for more,
// the one that has just released is often the next, and who polls looks quick: whenever one of the others
// finds the key free, it was free for a moment only.
func (p plan) serve(ctx context.Context, t *target, s setting, r rival) (_ score, err error) {
	if err := t.rdb.FlushAll(ctx).Err(); err != nil {
		return score{}, err
	}
	trip, err := roundTrip(ctx, r, t.addr)
	if err != nil {
		return score{}, err
	}
	runtime.GC()
	q, err := p.openQueue(ctx, t.addr, r, s)
	if err != nil {
		return score{}, err
	}
	defer func() { err = errors.Join(err, q.close()) }()

	if err := t.resetStats(ctx); err != nil {
		return score{}, err
	}
	from := now()
	if err := q.holds.Release(ctx); err != nil {
		return score{}, err
	}
	late := q.crowd.wait(stranded)
	to := now()
	sent, err := t.stats(ctx)
	if err != nil {
		return score{}, err
	}
	diaries, err := q.end()
	if err := errors.Join(err, ctx.Err()); err != nil {
		return score{}, err
	}
	if late == nil {
		to = from
	}
	for i := range diaries {
		to = max(to, diaries[i].since(from, late))
	}
	holder := diary{Locker: -1, Holds: []hold{{Asked: from - 1, Acquired: from - 1, Released: from}}}
	return judge(append(diaries, holder), from, to).with(r, trip, sent), nil
}

// since has d's only wait begin at from, and returns when it had ended. One in vain has failed because of late.
func (d *diary) since(from int64, late error) (end int64) {
	if len(d.Holds) == 0 {
		d.Waiting = from
		d.Failures++
		d.Reason = fmt.Sprint("no turn: ", late)
		return from
	}
	d.Holds[0].Asked = from
	return d.Holds[0].Acquired + 1
}
