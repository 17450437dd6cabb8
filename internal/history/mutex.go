package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// Mutex is a lock with leases: free, or one holder's.
//
// An acquisition takes effect at one moment of its call. A hold ends at one moment between its holder's last right to
// count on it and its end for certain:
//
//   - with a release that says "released", within the call of Release, and it must still be held then;
//   - with any other end, a loss or a death or a release whose outcome is unknown, at any time from the last moment at
//     which the holder had it by its own clock: the deadline that it last read, or an earlier end that it was told.
//
// So that two holds whose holders both counted on them at one moment have no order: one of them would have to end
// before its holder stopped counting on it. Nothing here knows the lease of the server; it may last longer.
//
// A refusal needs somebody else's hold at one moment of its call, or a call that may have had the lock unseen: see
// Excused.
func Mutex() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, input, _ any) (bool, any) {
			holder, in := state.(int), input.(MutexInput)
			switch in.Does {
			case Take:
				return holder == 0, in.Hold
			case End:
				return holder == in.Hold, 0
			default:
				return holder != 0 && holder != in.Hold || in.Excused, holder
			}
		},
		DescribeOperation: func(input, _ any) string { return input.(MutexInput).String() },
		DescribeState:     func(state any) string { return holderName(state.(int)) },
	}
}

// An Act is what an operation does to a lock.
type Act string

const (
	Take   Act = "take"
	End    Act = "end"
	Refuse Act = "refused"
)

// MutexInput is one operation of a history of [Mutex].
type MutexInput struct {
	Does Act
	Hold int    // from 1, one for each granted acquisition; of a refusal 0
	How  string // for people: how it came to an end

	// Excused is a refusal during which the lock may have been somebody's who never knew, or has given it back without
	// telling when: a call without an answer, or one that waited in line in vain, whose turn may have come and passed.
	Excused bool
}

func (in MutexInput) String() string {
	switch in.Does {
	case Take:
		return fmt.Sprintf("acquire → %d", in.Hold)
	case End:
		return fmt.Sprintf("%d ends: %s", in.Hold, in.How)
	}
	if in.Excused {
		return "acquire → refused (excused)"
	}
	return "acquire → refused"
}

func holderName(h int) string {
	if h == 0 {
		return "free"
	}
	return fmt.Sprintf("held by %d", h)
}
