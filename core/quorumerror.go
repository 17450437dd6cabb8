package core

import (
	"fmt"
	"strings"
	"time"
)

// QuarantineError says which of several masters did not vote, as they had started a short time before and may have
// forgotten a lock. See [WithQuarantine]. It stands behind an [ErrUnavailable].
type QuarantineError struct {
	Nodes []string  // their addresses
	Until time.Time // when all of them vote again; zero where one does not tell since when it is up
}

func (e *QuarantineError) Error() string {
	until := "as long as INFO server is refused to us"
	if !e.Until.IsZero() {
		until = "until " + e.Until.Format("15:04:05.000")
	}
	return fmt.Sprintf("%s started a short time ago, may have forgotten a lock, and does not vote %s", strings.Join(e.Nodes, ", "), until)
}

// reason is why there was no majority, though nobody has the lock as far as is known.
func (a *attempt) reason(err error) error {
	var young QuarantineError
	var until time.Duration
	unknown := false
	texts := []error{}
	for i := range a.ballots {
		v := &a.ballots[i]
		if v.err == nil {
			continue
		}
		name := a.b.q.nodes[i].name
		texts = append(texts, &memberError{name, v.err})
		if v.err == errYoung {
			young.Nodes = append(young.Nodes, name)
			until = max(until, time.Duration(v.young)*time.Millisecond)
			unknown = unknown || v.young < 0
		}
	}
	if !unknown {
		young.Until = time.Now().Add(until)
	}
	switch {
	case err != nil:
		texts = append(texts, err)
	case len(texts) == 0:
		texts = append(texts, errContested)
	}
	out := &quorumError{all: texts, need: len(a.b.q.nodes) - a.b.q.need + 1}
	if len(young.Nodes) > 0 {
		out.young = &young
	}
	return out
}

// memberError is the failure of one master.
type memberError struct {
	name string
	err  error
}

func (e *memberError) Error() string { return e.name + ": " + e.err.Error() }
func (e *memberError) Unwrap() error { return e.err }

// quorumError is why there was no majority.
type quorumError struct {
	all   []error
	need  int // how many failures rule a majority out
	young *QuarantineError
}

func (e *quorumError) Error() string {
	if e.young != nil && len(e.all) == len(e.young.Nodes) {
		return e.young.Error()
	}
	texts := make([]string, len(e.all))
	for i, err := range e.all {
		texts[i] = err.Error()
	}
	return "no majority: " + strings.Join(texts, "; ")
}

func (e *quorumError) Unwrap() []error {
	if e.young != nil {
		return append([]error{e.young}, e.all...)
	}
	return e.all
}

// ofMasters tells whether it names any.
func (e *quorumError) ofMasters() bool {
	_, ok := e.all[0].(*memberError)
	return ok
}

// permanent: most masters refuse for good.
func (e *quorumError) permanent() bool {
	n := 0
	for _, err := range e.all {
		if permanent(err) {
			n++
		}
	}
	return n >= e.need
}
