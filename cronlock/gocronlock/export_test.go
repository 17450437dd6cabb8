package gocronlock

import "time"

// SetClock is for a replica whose clock differs from that of all others.
func SetClock(l *Locker, now func() time.Time) { l.clock.Now = now }
