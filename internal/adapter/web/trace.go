package web

import "github.com/holdfast-go/holdfast/internal/adapter/wiring"

// A Trace has the fields of the adapters' own.
type Trace[R any] struct{ Refused, Lost, Unreleased, Unlocked func(R, error) }

func refused[R any](t *Trace[R]) func(R, error)    { return t.Refused }
func lost[R any](t *Trace[R]) func(R, error)       { return t.Lost }
func unreleased[R any](t *Trace[R]) func(R, error) { return t.Unreleased }
func unlocked[R any](t *Trace[R]) func(R, error)   { return t.Unlocked }

func (e *Engine[R]) tell(from R, hook func(*Trace[R]) func(R, error), err error) {
	wiring.Tell(e.Traces, e.Standard, hook, from, err)
}
