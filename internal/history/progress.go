package history

import "github.com/anishathalye/porcupine"

// Progress is of calls that wait for several keys and do not give up: each has them in the end. Those that wait in a circle
// have none, and say so when they have waited for longer than anything but a hang takes.
func Progress() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return nil },
		Step: func(_, input, _ any) (bool, any) { return !input.(ProgressInput).Stuck, nil },
		DescribeOperation: func(input, _ any) string {
			if input.(ProgressInput).Stuck {
				return "all keys → stuck"
			}
			return "all keys"
		},
		DescribeState: func(any) string { return "" },
	}
}

// ProgressInput is a call that has its keys, or is stuck.
type ProgressInput struct{ Stuck bool }
