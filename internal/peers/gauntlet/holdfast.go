package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/redlock"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

var holdfastLibrary = library{
	name:   "holdfast",
	module: "github.com/holdfast-go/holdfast",
	key:    sameKey,
	open:   openHoldfast,
	alone:  true, together: true,
}

// ours is holdfast on clients with go-redis' default options, which it promises not to depend on.
type ours struct {
	locker  *holdfast.Locker
	options []holdfast.CallOption
	clients []*redis.Client
}

func openHoldfast(s settings) (locker, error) {
	o := ours{options: []holdfast.CallOption{holdfast.WithLabel(s.label)}}
	for _, addr := range s.addrs {
		o.clients = append(o.clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	if s.owner != "" {
		o.options = append(o.options, holdfast.WithReentryID(s.owner))
	}
	switch {
	case s.limit == readers:
		o.options = append(o.options, holdfast.WithShared())
	case s.limit > 0:
		o.options = append(o.options, holdfast.WithLimit(s.limit))
	}
	if s.tenant != "" {
		o.options = append(o.options, holdfast.WithShare(s.tenant))
	}
	if s.silence > 0 {
		o.options = append(o.options, holdfast.WithProgress(s.silence))
	}
	var err error
	if len(o.clients) > 1 {
		o.locker, err = redlock.New(o.clients, holdfast.WithTTL(s.lease), redlock.WithQuarantine(s.quarantine))
	} else {
		o.locker, err = holdfast.New(o.clients[0], holdfast.WithTTL(s.lease))
	}
	return o, err
}

func (o ours) try(ctx context.Context, key string) (lock, error) {
	return ourResult(o.locker.TryAcquire(ctx, key, o.options...))
}

func (o ours) acquire(ctx context.Context, key string) (lock, error) {
	return ourResult(o.locker.Acquire(ctx, key, o.options...))
}

// fence is for the database of a scenario.
var fence = sync.OnceValue(func() *sqlfence.Fence {
	f, err := sqlfence.New(sqlfence.SQLite)
	if err != nil {
		panic(err)
	}
	return f
})

func (o ours) under(ctx context.Context, key string) (lock, context.Context, error) {
	l, err := o.locker.TryAcquire(ctx, key, o.options...)
	if err != nil {
		return nil, nil, err
	}
	return ourLock{l}, l.Context(ctx), nil
}

func (o ours) write(ctx context.Context, db *sql.DB, statement string) error {
	return fence().WithTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
}

func ourResult(l *holdfast.Lock, err error) (lock, error) {
	if err != nil {
		return nil, marked(marked(err, errHeld, holdfast.ErrNotAcquired), errors.ErrUnsupported, holdfast.ErrInvalid)
	}
	return ourLock{l}, nil
}

func (o ours) waiting(key string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state, _ := o.locker.Inspect(ctx, key) // nobody, where it cannot be told
	return state.Waiting
}

func (o ours) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = o.locker.Shutdown(ctx) // a scenario may have left it no Redis to finish with
	for _, c := range o.clients {
		_ = c.Close()
	}
}

type ourLock struct{ lock *holdfast.Lock }

func (l ourLock) release(ctx context.Context) error {
	return marked(l.lock.Release(ctx), errNotHeld, holdfast.ErrLost)
}

func (l ourLock) lost() error { return l.lock.Err() }

func (l ourLock) progress() { holdfast.Progress(l.lock.Context(context.Background())) }

func (l ourLock) token() int64 { return l.lock.Token() }
