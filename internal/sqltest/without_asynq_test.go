//go:build without_asynq

package sqltest

import "testing"

func testTasks(t *testing.T, _ *cell) { t.Skip("left out: github.com/hibiken/asynq") }
