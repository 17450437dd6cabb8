// Package wiring has what the adapters share: the locks that a request or a task names, the mistakes in the arguments
// of a constructor, and hooks that have a default.
package wiring

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	holdfast "github.com/holdfast-go/holdfast/core"
)

const (
	// longestKey is the length of the longest key that holdfast.Key makes.
	longestKey = 256

	// mostLocks is how many locks DoAll takes at most.
	mostLocks = 64

	// longestShare is the length of the longest name that holdfast.WithShare takes.
	longestShare = 128
)

// Mistakes are those in the arguments of a constructor. Options only record them; the constructor panics with all of them.
type Mistakes []string

// Refuse records a mistake.
func (m *Mistakes) Refuse(format string, args ...any) { *m = append(*m, fmt.Sprintf(format, args...)) }

// Err returns one error that names all mistakes and matches holdfast.ErrInvalid, or nil if there are none.
func (m Mistakes) Err(act string) error {
	if len(m) == 0 {
		return nil
	}
	return Invalid("%s: %s", act, strings.Join(m, "; "))
}

// Invalid returns an error with that text that matches holdfast.ErrInvalid.
func Invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }

// Target is a resource, the part of a request or task that tells one of its locks from another, and the options that its
// lock alone has.
type Target[T any] struct {
	Resource string
	Part     func(T) ([]string, error)
	Own      []holdfast.CallOption
}

// noPart is the mistake of a nil part.
const noPart = "%sno part: a part needs names that are not empty, and Parts needs at least one part, none of them nil"

// A Share is the part that names the share of a request or task, of which there may be none.
type Share[T any] struct {
	Part func(T) ([]string, error)
}

// Judge records what is wrong with the locker, with the targets, of which the first is the constructor's and the others are
// from WithAlso, with the options of their locks, and with the share, which is nil without WithShare.
func Judge[T any](m *Mistakes, locker *holdfast.Locker, targets []Target[T], lock []holdfast.CallOption, share *Share[T]) {
	where := ""
	for _, t := range targets {
		if t.Resource == "" {
			m.Refuse("%sno resource", where)
		}
		if t.Part == nil {
			m.Refuse(noPart, where)
		}
		where = "WithAlso: "
	}
	if n := len(targets); n > mostLocks {
		m.Refuse("WithAlso: %d locks at once: want at most %d", n, mostLocks)
	}
	if share != nil && share.Part == nil {
		m.Refuse(noPart, "WithShare: ")
	}
	if locker == nil {
		m.Refuse("no Locker")
		return
	}
	// The key is as long as a key can be, to find a prefix that leaves no room for it.
	key := strings.Repeat("k", longestKey)
	if err := locker.Check(key, lock...); err != nil {
		m.Refuse("WithLock: %v", err)
		return
	}
	if share != nil {
		lock = append(lock[:len(lock):len(lock)], holdfast.WithShare("share"))
		if err := locker.Check(key, lock...); err != nil {
			m.Refuse("WithShare: %v", err)
			return
		}
	}
	for _, t := range targets {
		if err := locker.Check(key, append(lock[:len(lock):len(lock)], holdfast.OnKey(key, t.Own...))...); err != nil {
			m.Refuse("WithAlso: %v", err)
		}
	}
}

// Locks are the locks that a request or task names.
type Locks struct {
	Keys  []string              // each once
	Share string                // "" for none
	own   []holdfast.CallOption // of single keys
}

// Options returns all for the acquisition of the locks, the share, and the options of single keys.
func (l Locks) Options(all ...holdfast.CallOption) []holdfast.CallOption {
	if len(l.own) == 0 && l.Share == "" {
		return all
	}
	all = slices.Clip(all)
	if l.Share != "" {
		all = append(all, holdfast.WithShare(l.Share))
	}
	return append(all, l.own...)
}

// Named returns the locks that from names, and its share. unnamed makes the error for a target of which it has what: a key
// without that value would be one lock for all that have none.
func Named[T any](targets []Target[T], share *Share[T], from T, unnamed func(resource, what string) error) (Locks, error) {
	l := Locks{Keys: make([]string, 0, len(targets))}
	own := slices.ContainsFunc(targets, func(t Target[T]) bool { return len(t.Own) > 0 })
	for _, t := range targets {
		parts, err := t.Part(from)
		switch {
		case err != nil:
			return Locks{}, err
		case len(parts) == 0:
			return Locks{}, unnamed(t.Resource, "nothing")
		case slices.Contains(parts, ""):
			return Locks{}, unnamed(t.Resource, "an empty value")
		}
		key := holdfast.Key(append([]string{t.Resource}, parts...)...)
		if !slices.Contains(l.Keys, key) {
			l.Keys = append(l.Keys, key)
		}
		if own { // also without options: of targets that turn out to be one key, the smallest limit is to count
			l.own = append(l.own, holdfast.OnKey(key, t.Own...))
		}
	}
	if share == nil {
		return l, nil
	}
	parts, err := share.Part(from)
	switch {
	case errors.Is(err, ErrAbsent):
	case err != nil:
		return Locks{}, err
	case !slices.Contains(parts, ""):
		l.Share = shareName(parts)
	}
	return l, nil
}

// shareName returns "" for no parts. What is longer than a name can be is hashed. '#' is in no other name: holdfast.Key escapes
// it, and puts one only into keys that are longer.
func shareName(parts []string) string {
	name := holdfast.Key(parts...)
	if len(name) <= longestShare {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := "#" + hex.EncodeToString(sum[:])
	return name[:longestShare-len(end)] + end
}

// ErrAbsent is matched by the error of a part that finds no value. That is no error of a share.
var ErrAbsent = errors.New("no value")

// Absent returns err, which then matches ErrAbsent too.
func Absent(err error) error { return &absentError{err} }

type absentError struct{ error }

func (e *absentError) Unwrap() error        { return e.error }
func (e *absentError) Is(target error) bool { return target == ErrAbsent }

// Parts returns a part that takes what all of parts take, in their order; nil for none, or if one is nil.
func Parts[P ~func(T) ([]string, error), T any](parts []P) P {
	if len(parts) == 0 || slices.ContainsFunc(parts, func(p P) bool { return p == nil }) {
		return nil
	}
	parts = slices.Clone(parts)
	return func(from T) (all []string, err error) {
		for _, p := range parts {
			some, err := p(from)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
}

// Tell is Report for hooks that take two values.
func Tell[T, A, B any](traces []*T, standard *T, hook func(*T) func(A, B), a A, b B) {
	Report(traces, standard, func(t *T) func(B) {
		f := hook(t)
		if f == nil {
			return nil
		}
		return func(b B) { f(a, b) }
	}, b)
}

// Report calls one hook of every trace that sets it, or that of standard if none does.
func Report[T, E any](traces []*T, standard *T, hook func(*T) func(E), e E) {
	told := false
	for _, t := range traces {
		if f := hook(t); f != nil {
			f(e)
			told = true
		}
	}
	if f := hook(standard); !told && f != nil {
		f(e)
	}
}
