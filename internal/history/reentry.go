package history

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Reentry is a lock that one owner may have several times over: it is the owner's until the last of its handles has
// ended. A handle begins and ends as a hold of [Mutex] does.
//
// An acquisition by the owner takes effect beside its other handles and has their token; one by somebody else needs the
// lock free, and has a larger token. A refusal needs somebody else's hold: an owner is not refused what it has. Only where
// a call waits in line it may be: once the first of the owner's handles has ended, a waiter of another owner is before the
// owner's new calls.
func Reentry() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return reentryState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, in := state.(reentryState), input.(ReentryInput)
			switch in.Does {
			case Take:
				if s.Handles != "" {
					return s.Owner == in.Owner && s.Token == in.Token, s.with(in.Handle)
				}
				again := in.Token > s.Token || in.Unseen && s.Owner == in.Owner && s.Token == in.Token
				return again, reentryState{Owner: in.Owner, Token: in.Token}.with(in.Handle)
			case End:
				return s.has(in.Handle), s.without(in.Handle)
			default:
				return s.Handles != "" && s.Owner != in.Owner || in.Excused, s
			}
		},
		DescribeOperation: func(input, _ any) string {
			in := input.(ReentryInput)
			switch {
			case in.Does == Take:
				return fmt.Sprintf("%s acquires → %d, token %d", in.Owner, in.Handle, in.Token)
			case in.Does == End:
				return fmt.Sprintf("%d of %s ends: %s", in.Handle, in.Owner, in.How)
			case in.Excused:
				return in.Owner + " acquires → refused (excused)"
			}
			return in.Owner + " acquires → refused"
		},
		DescribeState: func(state any) string {
			if s := state.(reentryState); s.Handles != "" {
				return fmt.Sprintf("%s by%s", s.Owner, s.Handles)
			}
			return "free"
		},
	}
}

// reentryState can be compared, so that it has no slice: Handles is " 3 17 ", in order. Where there are none, Owner and
// Token are of the last hold.
type reentryState struct {
	Owner, Handles string
	Token          int64
}

func (s reentryState) has(handle int) bool {
	return strings.Contains(s.Handles, fmt.Sprintf(" %d ", handle))
}

func (s reentryState) with(handle int) reentryState {
	return s.set(append(strings.Fields(s.Handles), fmt.Sprint(handle)))
}

func (s reentryState) without(handle int) reentryState {
	name := fmt.Sprint(handle)
	return s.set(slices.DeleteFunc(strings.Fields(s.Handles), func(h string) bool { return h == name }))
}

func (s reentryState) set(handles []string) reentryState {
	s.Handles = ""
	if len(handles) > 0 {
		slices.Sort(handles)
		s.Handles = " " + strings.Join(handles, " ") + " "
	}
	return s
}

// ReentryInput is one operation of a history of [Reentry].
type ReentryInput struct {
	Does    Act
	Owner   string
	Handle  int // from 1; of a refusal 0
	Token   int64
	How     string
	Excused bool // as in MutexInput

	// Unseen is an acquisition beside one of the same owner's that nobody heard of, and that may have kept the lock
	// while no handle was known.
	Unseen bool
}
