//go:build race

package holdfast_test

// underRace is for tests in one goroutine, of which the race detector makes little but a long wait.
const underRace = true
