package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/peers"
)

// deluge is one measurement of messages that come from somebody else.
type deluge struct {
	calm, during window
	commands     int64   // that they made the Locker send
	touched      int     // keys of others that are gone or changed
	served       float64 // ms from the release until the waiter had the lock; not a number if it never did
	reason       string
}

func (d deluge) trouble() (int, string) {
	if d.reason != "" {
		return 1, d.reason
	}
	return 0, ""
}

var delugeColumns = []column[deluge]{
	typical("goroutines more", 0, func(d deluge) float64 { return float64(d.during.Goroutines - d.calm.Goroutines) }),
	typical("RSS MB more", 1, func(d deluge) float64 { return float64(d.during.RSS-d.calm.RSS) / megabyte }),
	typical("commands", 0, func(d deluge) float64 { return float64(d.commands) }),
	total("keys touched", func(d deluge) int { return d.touched }),
	typical("served after ms", 1, func(d deluge) float64 { return unserved(d.served) }),
	failed[deluge](),
}

// Arrival is when a waiter got its lock.
type Arrival struct {
	At     int64
	Reason string
}

// Await begins to wait for a lock that somebody else has.
func (l *Loader) Await(key string, _ *struct{}) error {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		lock, err := l.waiter.acquire(ctx, key)
		if err == nil {
			l.awaited <- Arrival{now(), ""}
			_ = lock.Release(context.WithoutCancel(ctx))
			return
		}
		l.awaited <- Arrival{now(), err.Error()}
	}()
	return nil
}

// Awaited returns once that has ended.
func (l *Loader) Awaited(_ struct{}, s *Arrival) error {
	*s = <-l.awaited
	return nil
}

// flood has somebody publish messages to the inbox of a Locker in which a call waits. What they say is well formed: that
// grants came for others, for the same key and for foreign ones.
func (b *bulk) flood(ctx context.Context) (table, error) {
	var all []row[deluge]
	for _, client := range clients {
		rows, err := interleave(b.rounds, []string{us}, func(int) (deluge, error) {
			return b.pour(ctx, trial{contender: contenders[1], timeouts: client.timeouts, ttl: lease, patience: time.Second})
		}, client.name)
		if err != nil {
			return table{}, err
		}
		all = append(all, rows...)
	}
	title := fmt.Sprintf("%d hostile messages to the inbox of a Locker in which one call waits.", b.bulk.messages)
	return tabulate(title, []string{"client", ""}, delugeColumns, all, "more: at most, than before. commands: of the Locker meanwhile. "+
		"keys touched: of 100 that the messages name. served after: from the release of the lock until the waiter has it, and 1000000 if it never did."), nil
}

func (b *bulk) pour(ctx context.Context, t trial) (d deluge, err error) {
	l, err := t.start(ctx)
	if err != nil {
		return d, err
	}
	defer l.close()
	rdb := l.watcher.rdb
	holder, err := holdfast.New(rdb, holdfast.WithTTL(lease))
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, shutDown(holder)) }()
	lock, err := holder.Acquire(ctx, hot)
	if err != nil {
		return d, err
	}
	if err := l.ask("Await", hot, &struct{}{}); err != nil {
		return d, err
	}
	var inbox []string
	for until := time.Now().Add(patience); len(inbox) == 0; {
		if inbox, err = rdb.PubSubChannels(ctx, "holdfast:inbox:*").Result(); err != nil || time.Now().After(until) {
			return d, errors.Join(errors.New("the waiter has no inbox"), err)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return d, err
		}
	}
	const victims = 100
	owner := peers.RandomValue()
	victim := func(i int) string { return fmt.Sprint("victim:", i%victims) }
	for i := range victims {
		if err := rdb.Set(ctx, victim(i), owner, 0).Err(); err != nil {
			return d, err
		}
	}
	if err := pause(ctx, 4*loopSlot); err != nil {
		return d, err
	}
	if err := l.watcher.resetStats(ctx); err != nil {
		return d, err
	}
	began := now()
	at := time.Now().UnixMicro()
	for i := 0; i < b.bulk.messages; {
		pipe := rdb.Pipeline()
		for range min(1000, b.bulk.messages-i) {
			who, key := owner, victim(i)
			if i%4 == 1 {
				who, key = peers.RandomValue(), hot
			}
			pipe.Publish(ctx, inbox[0], fmt.Sprintf("%s\n%d\n%d\n%s", who, at, at, key))
			i++
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return d, err
		}
	}
	if err := pause(ctx, min(b.duration/2, time.Second)); err != nil {
		return d, err
	}
	sent, err := l.watcher.stats(ctx)
	if err != nil {
		return d, err
	}
	commands, _ := sent.split(sentByHoldfast)
	d.commands = commands.calls
	for i := range victims {
		if rdb.Get(ctx, victim(i)).Val() != owner {
			d.touched++
		}
	}
	released := now()
	if err := lock.Release(ctx); err != nil {
		d.reason = err.Error()
	}
	var s Arrival
	if err := l.ask("Awaited", struct{}{}, &s); err != nil {
		return d, err
	}
	d.served = float64(s.At-released) / 1e6
	if s.Reason != "" {
		d.served, d.reason = math.NaN(), s.Reason
	}
	w, err := l.windows([2]int64{began - 3*int64(loopSlot), began}, [2]int64{began, now()})
	d.calm, d.during = w[0], w[1]
	return d, err
}
