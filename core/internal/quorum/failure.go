package quorum

import (
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/redisconn"
)

// Young names the masters that did not vote because they had started a short time before and may have forgotten a lock.
type Young struct {
	Names []string
	Until time.Time // when all of them vote again; zero if one does not report how long it has been up
}

// reason returns why there was no majority, although nobody is known to hold the lock.
func (a *attempt) reason(err error) error {
	young, texts := &Young{}, []error{}
	var until time.Duration
	unknown := false
	for i := range a.votes {
		v := &a.votes[i]
		if v.err == nil {
			continue
		}
		name := a.q.all[i].name
		texts = append(texts, &memberError{name, v.err})
		if v.err == errYoung {
			young.Names = append(young.Names, name)
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
	return &Failure{all: texts, need: len(a.q.all) - a.q.need + 1, Young: young}
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

// Failure is why there was no majority.
type Failure struct {
	*Young
	all  []error
	need int // how many failures rule out a majority
}

func (e *Failure) Error() string {
	texts := make([]string, len(e.all))
	for i, err := range e.all {
		texts[i] = err.Error()
	}
	return "no majority: " + strings.Join(texts, "; ")
}

func (e *Failure) Unwrap() []error { return e.all }

// AllYoung reports whether the masters that did not vote failed only because of their age.
func (e *Failure) AllYoung() bool { return len(e.all) == len(e.Young.Names) }

// OfMasters reports whether the failure names any master.
func (e *Failure) OfMasters() bool {
	_, ok := e.all[0].(*memberError)
	return ok
}

// Permanent reports whether so many masters refuse for good that there can be no majority.
func (e *Failure) Permanent() bool {
	n := 0
	for _, err := range e.all {
		if redisconn.Permanent(err) {
			n++
		}
	}
	return n >= e.need
}
