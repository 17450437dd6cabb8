package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// scenario is a known failure of lock libraries.
type scenario struct {
	name   string
	wrong  string // what goes wrong where a library has it
	source string // where it, or its like in another library, was reported
	needs  []feature
	// together is whether it is about locks that several may hold.
	together bool
	run      func(b *bed) verdict
}

type outcome string

const (
	passes  outcome = "pass"
	fails   outcome = "fail"
	noMatch outcome = "n/a"
	aborted outcome = "aborted" // the run did not get to what it is about
	varies  outcome = "varies"  // runs differ: no verdict
)

// verdict is what one run says of a library.
type verdict struct {
	outcome outcome
	note    string // what was observed, or why it does not apply
}

func pass(format string, args ...any) verdict { return verdict{passes, fmt.Sprintf(format, args...)} }
func fail(format string, args ...any) verdict { return verdict{fails, fmt.Sprintf(format, args...)} }

// scenarios is all of them, in the order of a lock's life.
var scenarios = slices.Concat(acquiring, releasing, leases, losses, guards, waiting, keys, masters, several)

// try runs the scenario, and again where it did not get to what it is about, as on a busy machine.
func (s scenario) try(lib library, patience time.Duration) (v verdict) {
	for range 3 {
		if v = s.once(lib, patience); v.outcome != aborted {
			break
		}
	}
	return v
}

func (s scenario) once(lib library, patience time.Duration) (v verdict) {
	for _, f := range s.needs {
		if why, lacking := lib.lacks[f]; lacking {
			return verdict{noMatch, why}
		}
	}
	b := &bed{Program: &servertest.Program{}, lib: lib, patience: patience, key: lib.key(order)}
	if err := b.perform(func() { v = s.run(b) }); err != nil {
		return verdict{aborted, err.Error()}
	}
	return v
}

// ms rounds what was measured to what means something.
func ms(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
