//go:build without_redsync

package interop

import "testing"

func TestRedsync(t *testing.T) { t.Skip("left out: github.com/go-redsync/redsync") }
