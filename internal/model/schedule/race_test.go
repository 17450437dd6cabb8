//go:build race

package schedule

// raced: the race detector makes a search ten times as slow, and there is nothing concurrent in one.
const raced = true
