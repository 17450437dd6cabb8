package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// Claim is the high-water mark of a name. A tick is granted when it is at least Gap, or one step, after the mark, which
// it raises; a claim is told that its tick is taken when it is not.
//
// A claim without an answer may have raised the mark at any time, and never had to. The only thing that follows from it
// is that others may be told "taken" for it, see ClaimInput.Unknown; were it an operation of its own, each would double
// the number of orders.
func Claim() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, _ any) (bool, any) {
			mark, in := state.(int64), input.(ClaimInput)
			if in.Granted {
				return in.after(mark) || !in.after(in.Forgotten), max(mark, in.Tick)
			}
			return !in.after(mark) || !in.after(in.Unknown), mark
		},
		DescribeOperation: func(input, _ any) string {
			in := input.(ClaimInput)
			return fmt.Sprintf("claim %d → %s", in.Tick, map[bool]string{true: "granted", false: "taken"}[in.Granted])
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
}

// ClaimInput is one claim that was answered.
type ClaimInput struct {
	Tick    int64 // µs, positive
	Gap     int64 // µs; the same for all claims of a name
	Granted bool

	Unknown   int64 // the last tick that a claim without an answer may have taken before this one returned; 0 if none
	Forgotten int64 // the last tick that somebody claimed before a server forgot it, with its data or by its clock, before this one returned; or 0
}

func (in ClaimInput) after(mark int64) bool {
	return mark == 0 || in.Tick >= mark+max(in.Gap, 1)
}
