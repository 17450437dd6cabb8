package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Permit is a semaphore with leases that stores no number: each call names how many may be inside while it is, itself
// included, and nobody is ever inside together with more than its own limit allows.
//
// An acquisition takes effect as one of [Mutex] does. A hold that is released ends within the call of Release. Any other
// lapses at the last moment at which its holder had it by its own clock, and may be over at any time from then on. It does
// not keep others out then, but may be what a call was refused for, until somebody has entered who could not beside it.
//
// One with limit 1 is alone, and its token is larger than all that were handed out before. The tokens of holders that are
// inside together have no order; they are larger than that of the last one that was alone.
//
// A refusal needs so many inside, at one moment of its call, that one more would be too many; or an excuse.
func Permit() porcupine.Model {
	return permits(func(inside []permit, limit int) bool {
		for _, p := range inside {
			limit = min(limit, p.limit)
		}
		return len(inside)+1 <= limit
	})
}

// permits is a model of holds that are together as room allows: it tells whether one more may enter beside those inside.
func permits(room func(inside []permit, limit int) bool) porcupine.Model {
	return porcupine.Model{
		Partition: func(ops []porcupine.Operation) [][]porcupine.Operation { return [][]porcupine.Operation{inOrder(ops)} },
		Init:      func() any { return permitState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, in := state.(permitState), input.(PermitInput)
			at := slices.IndexFunc(s.inside, func(p permit) bool { return p.hold == in.Hold })
			switch in.Does {
			case Take:
				ok := in.after == s.alone
				if in.Limit == 1 {
					ok = ok && in.Token > s.last && in.rank == s.taken
					s.alone = in.Token
				}
				s.last = max(s.last, in.Token)
				s.taken++
				sure := slices.DeleteFunc(slices.Clone(s.inside), func(p permit) bool { return p.lapsed })
				ok = ok && room(sure, in.Limit)
				s.inside = slices.DeleteFunc(slices.Clone(s.inside), func(p permit) bool {
					return p.lapsed && !room(append(sure, p), in.Limit)
				})
				s.inside = append(s.inside, permit{hold: in.Hold, limit: in.Limit})
				slices.SortFunc(s.inside, func(a, b permit) int { return cmp.Compare(a.hold, b.hold) })
				return ok, s
			case Refuse:
				return !room(s.inside, in.Limit) || in.Excused, s
			}
			if at < 0 {
				return in.Lapsed, s
			}
			s.inside = slices.Clone(s.inside) // other states have it too
			if in.Does == Lapse {
				s.inside[at].lapsed = true
			} else {
				s.inside = slices.Delete(s.inside, at, at+1)
			}
			return true, s
		},
		Equal: func(a, b any) bool {
			s, o := a.(permitState), b.(permitState)
			return s.last == o.last && s.alone == o.alone && slices.Equal(s.inside, o.inside)
		},
		DescribeOperation: func(input, _ any) string { return input.(PermitInput).String() },
		DescribeState: func(state any) string {
			s := state.(permitState)
			return fmt.Sprintf("inside %v; issued %d, alone %d", s.inside, s.last, s.alone)
		},
	}
}

// inOrder notes of each acquisition behind which one that was alone it comes, and of one that is alone behind how many. That
// follows from the tokens, which rise so; but to see it at once spares all orders of the calls in between, where some waited
// long.
func inOrder(ops []porcupine.Operation) []porcupine.Operation {
	ops = slices.Clone(ops)
	var all, alone []int64
	for _, o := range ops {
		in := o.Input.(PermitInput)
		if in.Does != Take {
			continue
		}
		if all = append(all, in.Token); in.Limit == 1 {
			alone = append(alone, in.Token)
		}
	}
	slices.Sort(all)
	slices.Sort(alone)
	for i := range ops {
		in := ops[i].Input.(PermitInput)
		if n, _ := slices.BinarySearch(alone, in.Token); n > 0 {
			in.after = alone[n-1]
		}
		in.rank, _ = slices.BinarySearch(all, in.Token)
		ops[i].Input = in
	}
	return ops
}

type permitState struct {
	inside []permit
	taken  int   // acquisitions so far
	last   int64 // the largest token
	alone  int64 // the largest of those that were alone
}

type permit struct {
	hold, limit int
	lapsed      bool
}

const (
	// Unlimited is the limit of a reader.
	Unlimited = math.MaxInt32

	Lapse Act = "lapse"
)

// PermitInput is one operation of a history of [Permit] or of [Shared].
type PermitInput struct {
	Does   Act
	Hold   int // from 1, one for each granted acquisition; of a refusal 0
	Limit  int // 1 for a writer, Unlimited for a reader
	Token  int64
	after  int64  // the last token before this one that somebody alone had, see inOrder
	rank   int    // how many tokens are smaller
	How    string // for people: how it came to an end
	Lapsed bool   // of an end: it lapsed before, and somebody may have entered in its place

	// Excused is a refusal that says nothing of those inside: as in MutexInput, or as somebody may have stood in line before
	// it, or another call of its process was at it.
	Excused bool
}

func (in PermitInput) String() string {
	of := fmt.Sprint("one of ", in.Limit)
	switch in.Limit {
	case 1:
		of = "alone"
	case Unlimited:
		of = "reader"
	}
	switch {
	case in.Does == Take:
		return fmt.Sprintf("acquire, %s → %d, token %d", of, in.Hold, in.Token)
	case in.Does != Refuse:
		return fmt.Sprintf("%s of %d, %s: %s", in.Does, in.Hold, of, in.How)
	case in.Excused:
		return fmt.Sprintf("acquire, %s → refused (excused)", of)
	}
	return fmt.Sprintf("acquire, %s → refused", of)
}
