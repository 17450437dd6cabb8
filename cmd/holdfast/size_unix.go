//go:build unix && !aix && !solaris

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// windowSize returns the size of a terminal, or 0 if it is none, or not known. Package syscall has no call for it, and
// golang.org/x/sys would be one more requirement of everybody who uses the module.
func windowSize(f *os.File) (columns, rows int) {
	var size struct{ rows, columns, x, y uint16 }
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0, 0
	}
	return int(size.columns), int(size.rows)
}
