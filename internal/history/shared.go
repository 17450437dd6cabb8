package history

import (
	"slices"

	"github.com/anishathalye/porcupine"
)

// Shared is a lock for readers and writers: free, one writer's, or some readers'. Their holds begin and end as those of
// [Permit] do.
//
// A writer's token is larger than all that were handed out before, and a reader's than those of the writers. Two readers
// may have the same.
func Shared() porcupine.Model {
	return permits(func(inside []permit, limit int) bool {
		if limit == 1 {
			return len(inside) == 0
		}
		return !slices.ContainsFunc(inside, func(p permit) bool { return p.limit == 1 })
	})
}
