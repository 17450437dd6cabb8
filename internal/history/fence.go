package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// Fence is a lock's tokens beside a register that they protect. It holds whatever becomes of leases and of Redis' data,
// and for holders that were stopped past their lease and go on as if nothing had happened.
//
// Tokens rise in the order of the acquisitions: of two that do not overlap the later one has the larger. The register
// takes a read or a write of a token that is not older than any it has seen, and refuses all others, so that the value
// that a write replaces is the one that its holder has read: no update is lost.
//
// Which reads and writes are refused follows from the tokens alone. A refusal of the newest holder, as by a token that
// fell, is as wrong as a write by a stale one.
func Fence() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return fenceState{} },
		Step: func(state, input, output any) (bool, any) {
			s, in := state.(fenceState), input.(FenceInput)
			out, _ := output.(FenceOutput) // a grant has none
			if in.Does == Grant {
				old := s.Issued
				s.Issued = in.Token
				return in.Token > old && (in.Follows == 0 || in.Follows == old), s
			}
			if in.Token < s.Mark {
				return out.Refused, s
			}
			s.Mark = in.Token
			if in.Does == Read {
				return !out.Refused && out.Value == s.Value, s
			}
			old := s.Value
			s.Value = in.Value
			return !out.Refused && in.Based == old, s
		},
		DescribeOperation: func(input, output any) string {
			in := input.(FenceInput)
			out, _ := output.(FenceOutput)
			switch {
			case in.Does == Grant:
				return fmt.Sprintf("token %d", in.Token)
			case out.Refused:
				return fmt.Sprintf("%s with %d → refused", in.Does, in.Token)
			case in.Does == Read:
				return fmt.Sprintf("read with %d → %d", in.Token, out.Value)
			}
			return fmt.Sprintf("write %d for %d with %d", in.Value, in.Based, in.Token)
		},
		DescribeState: func(state any) string {
			s := state.(fenceState)
			return fmt.Sprintf("%d, by %d; issued %d", s.Value, s.Mark, s.Issued)
		},
	}
}

type fenceState struct {
	Issued int64 // the last token
	Mark   int64 // the largest that the register has seen
	Value  int64
}

const (
	Grant Act = "grant"
	Read  Act = "read"
	Write Act = "write"
)

// FenceInput is one operation of a history of [Fence].
type FenceInput struct {
	Does         Act
	Token        int64
	Follows      int64 // of a grant: the token before, if that is known
	Value, Based int64 // of a write: the new value, and the one that its holder has read
}

// FenceOutput is what the register answered.
type FenceOutput struct {
	Refused bool
	Value   int64 // that was read
}
