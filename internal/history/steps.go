package history

import "time"

// A Step is that of a wall clock that servers go by, which somebody set forward, or back. What holds all the same:
//
//   - Nobody loses anything by a clock that is set back, and no two hold a lock. What is in Redis only lasts longer.
//   - A clock that is set forward ends leases early. Steps that add up to less than the time by which a holder's deadline lies
//     before the end of its lease take nothing from it. Beyond that a hold that was requested before the step may be over for
//     others, whether its holder counts on it or not. Holds that are requested after it are as safe as ever.
//   - Tokens rise, and the register refuses the older ones, unless a clock is set forward by more than the fence lives, and then
//     back by more than that. No world does that, so nothing is excused. TestTokensOfAClockThatWentForthAndBack does.
//   - A tick is granted once, unless a clock went past it by its window, and back again.
//   - Of several masters a minority may have any time, and locks and ticks are granted.
type Step struct {
	Clock    int   // one of those of the world
	From, To Stamp // before it was made, and once it was seen
	By       time.Duration
}

// window is how far a tick may be behind the clock of a server.
const window = time.Minute

// early is when a clock may have ended a lease early that was asked for at since; Forever if none has.
func (r *Record) early(since Stamp) Stamp {
	first, risen := Forever, map[int]time.Duration{} // the most since any moment from then on, when the lease began or was renewed
	for _, s := range r.Steps {
		if s.To < since {
			continue
		}
		risen[s.Clock] = max(0, risen[s.Clock]+s.By)
		if risen[s.Clock] >= r.Margin {
			first = min(first, max(since, s.From))
		}
	}
	return first
}

// passed tells whether a clock may have come to the end of a tick's window between two moments. What was known of the tick
// is forgotten then, and known to be too old unless the clock is set back.
func (r *Record) passed(tick int64, from, to Stamp) bool {
	end := time.Duration(tick)*time.Microsecond + window
	ahead := map[int]time.Duration{}
	for _, s := range r.Steps {
		if s.From > to {
			break
		}
		before := ahead[s.Clock]
		ahead[s.Clock] += s.By
		if s.To >= from && time.Duration(r.Unix+s.To)+before >= end {
			return true
		}
	}
	for _, by := range ahead {
		if time.Duration(r.Unix+to)+by >= end {
			return true
		}
	}
	return false
}
