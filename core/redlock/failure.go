package redlock

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// QuarantineError says which masters did not vote because they had started too recently, see [WithQuarantine]. It is
// found behind a [holdfast.ErrUnavailable].
type QuarantineError struct {
	Nodes []string  // their addresses
	Until time.Time // when all of them vote again; zero if one of them does not report its uptime
}

func (e *QuarantineError) Error() string {
	until := "as long as it refuses INFO server"
	if !e.Until.IsZero() {
		until = "until " + e.Until.Format("15:04:05.000")
	}
	return fmt.Sprintf("no vote from %s %s: a master that started recently may have forgotten a lock", strings.Join(e.Nodes, ", "), until)
}

// reason returns why there was no majority, although nobody is known to hold the lock.
func (a *attempt) reason(err error) error {
	f := &failure{need: len(a.q.all) - a.q.need + 1}
	var until time.Duration
	unknown := false
	for i := range a.votes {
		v := &a.votes[i]
		if v.err == nil {
			continue
		}
		name := a.q.all[i].name
		f.all = append(f.all, &memberError{name, v.err})
		if v.err == errYoung {
			f.young.Nodes = append(f.young.Nodes, name)
			until = max(until, time.Duration(v.young)*time.Millisecond)
			unknown = unknown || v.young < 0
		}
	}
	if !unknown {
		f.young.Until = time.Now().Add(until)
	}
	switch {
	case err != nil:
		f.all = append(f.all, err)
	case len(f.all) == 0:
		f.all = append(f.all, errContested)
	}
	return f
}

// memberError is the failure of one master.
type memberError struct {
	name string
	err  error
}

func (e *memberError) Error() string { return e.name + ": " + e.err.Error() }
func (e *memberError) Unwrap() error { return e.err }

// Node is the master's address.
func (e *memberError) Node() string { return e.name }

// failure is why there was no majority.
type failure struct {
	young QuarantineError
	all   []error
	need  int // how many failures rule out a majority
}

func (e *failure) Error() string {
	if len(e.all) == len(e.young.Nodes) {
		return e.young.Error()
	}
	texts := make([]string, len(e.all))
	for i, err := range e.all {
		texts[i] = err.Error()
	}
	return "no majority: " + strings.Join(texts, "; ")
}

func (e *failure) Unwrap() []error {
	if len(e.young.Nodes) == 0 {
		return e.all
	}
	return append(e.all[:len(e.all):len(e.all)], &e.young)
}

// OfMasters reports whether the failure names any master.
func (e *failure) OfMasters() bool {
	_, ok := e.all[0].(*memberError)
	return ok
}

// Permanent reports whether so many masters refuse for good that there can be no majority.
func (e *failure) Permanent() bool {
	n := 0
	for _, err := range e.all {
		if redisconn.Permanent(err) {
			n++
		}
	}
	return n >= e.need
}

// invalid is a holdfast.ErrInvalid with its reason, which does not pass on its own.
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "redlock: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }
func (*invalidError) Permanent() bool        { return true }
