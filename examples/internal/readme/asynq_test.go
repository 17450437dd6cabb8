//go:build !without_asynq

package readme

import (
	_ "github.com/hibiken/asynq"
	_ "github.com/holdfast-go/holdfast/asynqlock"
)

const withAsynq = true
