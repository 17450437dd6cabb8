//go:build !unix

package history

import "time"

// monotonic is not: it is the one clock that processes have in common here.
func monotonic() time.Duration { return time.Duration(time.Now().UnixNano()) }
