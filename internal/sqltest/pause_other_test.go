//go:build !unix

package sqltest

import "testing"

func testPausedReplica(t *testing.T, _ *cell, _ string) {
	t.Skip("there is no signal to pause a process")
}

func testKilled(t *testing.T, _ *cell, _ string) {
	t.Skip("there is no way to kill a process like this")
}
