package main

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// The application's share of a pool, and what the Locker has in it.
const (
	usedPool  = 16
	usedLocks = 8
	usedLease = 5 * time.Second
)

// Drought is one measurement of locks that are held while the application has all connections.
type Drought struct {
	Lost      int
	FirstLost float64 // s
	Took      float64 // ms until an acquire returned
	Answer    string  // what it returned
}

func (d Drought) trouble() (int, string) {
	if d.Lost > 0 {
		return d.Lost, "locks were lost; an acquire meanwhile: " + cmp.Or(d.Answer, "had the lock")
	}
	return 0, ""
}

var droughtColumns = []column[Drought]{
	total("lost", func(d Drought) int { return d.Lost }),
	typical("first after s", 1, func(d Drought) float64 { return d.FirstLost }),
	typical("acquire ms", 0, func(d Drought) float64 { return d.Took }),
}

// usedUp has an application use up the pool that its Locker shares. Both clients' turns are at the same time: nothing happens.
func (b *bulk) usedUp(ctx context.Context) (table, error) {
	t := table{}
	type turn struct {
		rows []row[Drought]
		err  error
	}
	turns := make([]chan turn, len(clients))
	for i, client := range clients {
		turns[i] = make(chan turn, 1)
		go func() {
			rows, err := interleave(1, []string{us}, func(int) (d Drought, err error) {
				l, err := trial{contender: contenders[1], timeouts: client.timeouts, pool: usedPool, ttl: usedLease, patience: time.Second}.start(ctx)
				if err != nil {
					return d, err
				}
				defer l.close()
				return d, l.ask("Starve", b.bulk.usedUp, &d)
			}, client.name)
			turns[i] <- turn{rows, err}
		}()
	}
	var all []row[Drought]
	for i := range turns {
		turn := <-turns[i]
		if turn.err != nil {
			return t, turn.err
		}
		all = append(all, turn.rows...)
	}
	t = tabulate(fmt.Sprintf("%d locks with a TTL of %v, held for %v while %d BLPOPs of the application have all %d connections.", usedLocks, usedLease, b.bulk.usedUp, usedPool, usedPool),
		[]string{"client", ""}, droughtColumns, all, "acquire: of another lock meanwhile, with a context of 10 s.")
	for i, r := range all {
		t.Notes = append(t.Notes, fmt.Sprintf("%s: the acquire: %s.", clients[i].name, cmp.Or(r.samples[0].Answer, "had the lock")))
	}
	return t, nil
}

// Starve holds locks, uses up the pool, and watches the locks for d.
func (l *Loader) Starve(d time.Duration, got *Drought) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var locks []interface{ Err() error }
	for i := range usedLocks {
		lock, err := l.waiter.acquire(ctx, fmt.Sprint("used:", i))
		if err != nil {
			return err
		}
		locks = append(locks, lock.(interface{ Err() error }))
	}
	for range usedPool {
		go l.target.rdb.BLPop(context.Background(), 0, "used:queue")
	}
	began := time.Now()
	time.Sleep(min(d/4, time.Second))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		ctx, cancel := context.WithTimeout(context.Background(), min(d/2, 10*time.Second))
		defer cancel()
		asked := time.Now()
		if _, err := l.waiter.acquire(ctx, "used:another"); err != nil {
			got.Answer = err.Error()
		}
		got.Took = micros(time.Since(asked)) / 1e3
	}()
	for ; time.Since(began) < d && got.Lost < len(locks); time.Sleep(10 * time.Millisecond) {
		lost := 0
		for _, lock := range locks {
			if lock.Err() != nil {
				lost++
			}
		}
		if lost > 0 && got.Lost == 0 {
			got.FirstLost = time.Since(began).Seconds()
		}
		got.Lost = lost
	}
	<-answered
	return nil
}
