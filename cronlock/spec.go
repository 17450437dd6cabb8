package cronlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Two replicas with different specs or time zones for one name claim each other's ticks, or run too often, and nothing
// fails. So a replica compares after a tick. It keeps the ticks that its schedule has after fixed moments in Redis, as text,
// next to the lock. Replicas with the same ticks keep the key alive. Without them it expires.

// fingerprint tells schedules apart, by their ticks in a few days around both changes of the clocks.
func fingerprint(s cron.Schedule, l *time.Location) string {
	if every := everyOf(s); every != 0 {
		return "every " + every.String()
	}
	if !stateless(s) {
		return fmt.Sprintf("of %T", s) // Next may change a state that belongs to its cron
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

const (
	specBound = time.Second // for one comparison
	specEvery = time.Minute // between two comparisons of a job
)

// compare calls the hook Differs if another replica has other ticks. key is the lock's key as stored in Redis, or "" if it
// is not known.
func (j *job) compare(key string, tick time.Time, period time.Duration, schedule cron.Schedule) {
	client := j.g.locker.Client()
	if client == nil || !j.due() {
		return // several masters have no one place for it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.g.ctx), specBound)
	defer cancel()
	if key == "" {
		state, err := j.g.locker.Inspect(ctx, j.key)
		if err != nil {
			return
		}
		key = state.Key
	}
	name, own, keep := "cronlock:spec:"+key, fingerprint(schedule, j.g.cron.Location()), 2*(period+specEvery)
	if fresh, err := client.SetNX(ctx, name, own, keep).Result(); err != nil || fresh {
		return
	}
	switch other, err := client.Get(ctx, name).Result(); {
	case err != nil:
	case other == own:
		client.PExpire(ctx, name, keep)
	default:
		j.tell(differs, Event{Tick: tick, Err: fmt.Errorf("cronlock: this replica has ticks %s, another replica %s", head(own), head(other))})
	}
}

// due reports whether it is time for a comparison.
func (j *job) due() bool {
	j.g.mu.Lock()
	defer j.g.mu.Unlock()
	now := time.Now()
	if !j.compared.IsZero() && now.Sub(j.compared) < specEvery {
		return false
	}
	j.compared = now
	return true
}

// head returns the first few ticks of a fingerprint.
func head(ticks string) string {
	const length = 62 // three of them
	if len(ticks) > length {
		return ticks[:length]
	}
	return ticks
}
