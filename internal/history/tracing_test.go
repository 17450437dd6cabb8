//go:build holdfast_trace

package history

const tracing = true
