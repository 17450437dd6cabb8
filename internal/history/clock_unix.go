//go:build unix

package history

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads the clock that all processes of the machine share, and that nobody sets.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // there is none
	}
	return time.Duration(ts.Nano())
}
