package ticks

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// Comparison finds out whether another replica has other ticks for a name, as after a change of a spec or with another time zone:
// such replicas claim each other's ticks, or run too often, and nothing fails. Replicas keep the ticks that a schedule has after
// fixed moments in Redis, as text, next to the lock. Those with the same ticks keep the key alive. Without them it expires. The
// zero value is ready. It is safe for concurrent use.
type Comparison struct {
	mu   sync.Mutex
	last time.Time
}

const (
	bound = time.Second // for one comparison
	every = time.Minute // between two
)

// Differs returns an error that shows both if another replica has another text than own. key is the lock's key, and stored what
// Redis calls it, or "" if that is not known.
func (c *Comparison) Differs(locker *holdfast.Locker, key, stored, own string, period time.Duration) error {
	client := locker.Client()
	if client == nil || !c.due() {
		return nil // several masters have no one place for it
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if stored == "" {
		state, err := locker.Inspect(ctx, key)
		if err != nil {
			return nil
		}
		stored = state.Key
	}
	name, keep := "cronlock:spec:"+stored, 2*(period+every)
	if fresh, err := client.SetNX(ctx, name, own, keep).Result(); err != nil || fresh {
		return nil
	}
	switch other, err := client.Get(ctx, name).Result(); {
	case err != nil:
	case other == own:
		client.PExpire(ctx, name, keep)
	default:
		return fmt.Errorf("cronlock: this replica has ticks %s, another replica %s", head(own), head(other))
	}
	return nil
}

// due reports whether it is time for a comparison.
func (c *Comparison) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.last.IsZero() && now.Sub(c.last) < every {
		return false
	}
	c.last = now
	return true
}

// Fingerprint tells schedules apart, by their ticks in a few days around both changes of the clocks.
func Fingerprint(s Schedule, l *time.Location) string {
	if delay := Delay(s); delay != 0 {
		return "every " + delay.String()
	}
	if !Stateless(s) {
		return fmt.Sprintf("of %T", s)
	}
	var all []string
	for _, from := range []time.Time{
		time.Date(2024, 2, 28, 23, 59, 30, 0, time.UTC), time.Date(2024, 3, 31, 0, 30, 0, 0, time.UTC),
		time.Date(2024, 7, 1, 12, 0, 0, 0, time.UTC), time.Date(2024, 10, 27, 0, 30, 0, 0, time.UTC),
	} {
		at := from.In(l)
		for range 3 {
			if at = s.Next(at); at.IsZero() {
				break
			}
			all = append(all, at.UTC().Format("2006-01-02T15:04:05"))
		}
	}
	return "at " + strings.Join(all, " ")
}

// head returns the first few ticks of a fingerprint.
func head(ticks string) string {
	const length = 62 // three of them
	if len(ticks) > length {
		return ticks[:length]
	}
	return ticks
}
