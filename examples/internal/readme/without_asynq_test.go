//go:build without_asynq

package readme

const withAsynq = false
