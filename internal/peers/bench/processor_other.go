//go:build !unix

package main

import "math"

// processorTime is not a number: it is not known here.
func processorTime() float64 { return math.NaN() }
