//go:build !unix

package cronlock_test

import "os"

func pauseProcess(*os.Process) bool { return false }
func resumeProcess(*os.Process)     {}
