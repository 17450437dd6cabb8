//go:build !race

package readme

const raced = false
