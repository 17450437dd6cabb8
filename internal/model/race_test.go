//go:build race

package model

// raced: the race detector makes a search ten times as slow, and there is nothing concurrent in one.
const raced = true
