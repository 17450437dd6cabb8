package history

import "time"

// A Stamp is a moment by the clock that the processes of the machine share, in ns.
type Stamp int64

// Forever is later than every moment.
const Forever Stamp = 1 << 62

// base is one moment by the runtime's clock, and by the shared one between two readings: a stamp is right to that
// difference. They are the same clock to the system, so that it stays what it is.
var base = func() (b struct {
	at          time.Time
	from, until time.Duration
}) {
	for i := range 100 { // the closest, as the process may lose its CPU in between
		from, at := monotonic(), time.Now()
		if until := monotonic(); i == 0 || until-from < b.until-b.from {
			b.at, b.from, b.until = at, from, until
		}
	}
	return b
}()

// Before is a stamp that is not later than t: that of a call, or of the last moment of a right.
func Before(t time.Time) Stamp { return Stamp(base.from + t.Sub(base.at)) }

// After is a stamp that is not earlier than t: that of a return.
func After(t time.Time) Stamp { return Stamp(base.until + t.Sub(base.at)) }
