package main

import (
	"context"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

type ours struct{ locker *holdfast.Locker }

func openHoldfast(t *target) (contender, error) {
	locker, err := holdfast.New(t.rdb, holdfast.WithTTL(lease))
	return ours{locker}, err
}

func (o ours) cycle(ctx context.Context, key string) error {
	lock, err := o.locker.Acquire(ctx, key)
	if err != nil {
		return err
	}
	return lock.Release(ctx)
}

func (o ours) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return o.locker.Shutdown(ctx)
}
