//go:build !unix

package history

import "os"

func pauseProcess(*os.Process) bool { return false }
func resumeProcess(*os.Process)     {}
