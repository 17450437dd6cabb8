//go:build !race

package holdfast_test

const underRace = false
