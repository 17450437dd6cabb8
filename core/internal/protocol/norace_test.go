//go:build !race

package protocol

func rounds(n int) int { return n }
