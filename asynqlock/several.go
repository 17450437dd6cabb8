package asynqlock

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// busyKey returns the one of keys that err is about.
func busyKey(keys []string, err error) string {
	var held *holdfast.HeldError
	if len(keys) == 1 || !errors.As(err, &held) {
		return keys[0]
	}
	key := ""
	for _, k := range keys {
		if strings.HasSuffix(held.Key, k) && len(k) > len(key) { // held.Key has the Locker's prefix
			key = k
		}
	}
	return cmp.Or(key, keys[0])
}

// passOn wakes a task at each free key, after a task that wants several was refused at another key. The refused task may
// have been woken for a free key, and so used up the turn of the next. Or it held that key while it asked for the rest, and
// kept others out. It released the key in the background and without a wake, hence the pause here. Keys that others hold are
// left alone, so that two tasks cannot keep waking each other forever.
//
// passOn does not wait. The task can be woken only after asynq has put it back, so two tasks that waited for each other here
// would never be woken.
func (g *Guard) passOn(ctx context.Context, want wiring.Locks, busy, outcome error) {
	var held *holdfast.HeldError
	if !errors.As(outcome, &held) && !errors.As(busy, &held) {
		return
	}
	r := refOf(ctx, want.Share)
	time.AfterFunc(settling, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
		defer cancel()
		for state, err := range g.locker.InspectAll(ctx, want.Keys...) {
			if err == nil && !state.Held && state.Key != held.Key { // the task that releases that one finds the note
				g.wake(ctx, state.Key, r, 1)
			}
		}
	})
}
