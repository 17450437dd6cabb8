package asynqlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

var errGone = errors.New("lost while another was waited for")

// busyKey is the one of keys that err is about.
func busyKey(keys []string, err error) string {
	var held *holdfast.HeldError
	if len(keys) == 1 || !errors.As(err, &held) {
		return keys[0]
	}
	key := ""
	for _, k := range keys {
		if strings.HasSuffix(held.Key, k) && len(k) > len(key) { // behind the Locker's prefix
			key = k
		}
	}
	return cmp.Or(key, keys[0])
}

// taken are the locks of inner that outer has not. The outer Guard wakes for those.
func taken(outer, inner context.Context) []*holdfast.Lock {
	return slices.DeleteFunc(holdfast.Held(inner), func(lock *holdfast.Lock) bool { return has(outer, lock) })
}

// has tells whether lock is a handle to a hold that ctx carries.
func has(ctx context.Context, lock *holdfast.Lock) bool {
	return slices.ContainsFunc(holdfast.Held(ctx), func(l *holdfast.Lock) bool { return l.Key() == lock.Key() && l.Token() == lock.Token() })
}

// passOn wakes a task at each key that is free, after one that wants several was refused for another key. It may have been woken
// for that free key, so that it had the turn of the next, or have had it while it asked for the rest, and have kept others out.
// It gives it back without a wake, in the background: hence the pause. Keys that others have are not touched, so that two tasks
// cannot wake each other for ever.
//
// This does not wait: the task can be woken only once asynq has put it back, and two that wait for each other never would be.
func (g *Guard) passOn(ctx context.Context, keys []string, busy, outcome error) {
	var held *holdfast.HeldError
	if !errors.As(outcome, &held) && !errors.As(busy, &held) {
		return
	}
	r := refOf(ctx)
	time.AfterFunc(settling, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteBound)
		defer cancel()
		for state, err := range g.locker.InspectAll(ctx, keys...) {
			if err == nil && !state.Held && state.Key != held.Key { // the release of that one finds the note
				g.wake(ctx, state.Key, noteOf(r.queue, r.id))
			}
		}
	})
}
