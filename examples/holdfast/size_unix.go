//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// windowSize returns the size of the terminal on stdout, or 0 if it is not known.
func windowSize() (columns, rows int) {
	size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}
