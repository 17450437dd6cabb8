//go:build without_redislock

package interop

import "testing"

func TestRedislock(t *testing.T) { t.Skip("left out: github.com/bsm/redislock") }
