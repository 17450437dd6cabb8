//go:build !unix

package main

import (
	"errors"
	"math"
	"os"
)

func pauseProcess(*os.Process) error  { return errors.ErrUnsupported }
func resumeProcess(*os.Process) error { return errors.ErrUnsupported }

// processorTime is not a number: it is not known here.
func processorTime() float64 { return math.NaN() }
