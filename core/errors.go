package holdfast

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// The outcomes that a caller may have to branch on: see "Errors" above. An error that concerns a key has the key in its text.
var (
	ErrNotAcquired  = errors.New("holdfast: lock is held elsewhere")
	ErrUnavailable  = errors.New("holdfast: no verdict from redis")
	ErrLost         = errors.New("holdfast: lock was lost")
	ErrClosed       = errors.New("holdfast: locker is shut down")
	ErrSelfDeadlock = errors.New("holdfast: the context already holds this lock")
	ErrInvalid      = errors.New("holdfast: invalid argument")
	ErrNoProgress   = errors.New("holdfast: no progress reported within the time of WithProgress")
)

// errReleased is what an ended lock reports after its own Release.
var errReleased = errors.New("holdfast: lock was released")

// HeldError describes the holder of a lock that could not be acquired. It matches [ErrNotAcquired].
type HeldError struct {
	Key string // as stored in Redis, prefix included

	// TimeLeft is what was left of the lease when Redis answered, at least 1 ms; of several, of the one that expires
	// first; 0 if the key never expires. A holder that renews keeps the lock longer.
	TimeLeft time.Duration

	// Holders is how many hold the lock together: see [WithLimit], [WithShared] and [WithReentryID].
	Holders int

	// Limit is that of the refused call, as in [Lock.Limit].
	Limit int

	// Label is the holder's [WithLabel], or empty: also WithShared and with a WithLimit above 1.
	Label string

	// Here reports that the holder is another call of this Locker, as far as the Locker knows.
	Here bool

	// Holding lists the keys that the caller's own context holds. When two calls deadlock, each holds what the other one
	// waits for.
	Holding []string
}

func (e *HeldError) Error() string {
	by := ""
	if e.Label != "" {
		by = " by " + e.Label
	}
	left := ", without expiry"
	if e.TimeLeft > 0 {
		left = fmt.Sprintf(", %v of its lease left", e.TimeLeft)
	}
	where := "elsewhere"
	if e.Here {
		where = "by this process"
		if by != "" {
			where = "in this process"
		}
	}
	if e.Holders > 1 {
		where, left = fmt.Sprintf("by %d together", e.Holders), fmt.Sprintf(", %v until the first of their leases ends", e.TimeLeft)
	}
	text := fmt.Sprintf("holdfast: %q is held %s%s%s", e.Key, where, by, left)
	if len(e.Holding) > 0 {
		text += fmt.Sprintf("; the caller's context holds %s", listing(e.Holding))
	}
	return text
}

// listing names the first few of keys.
func listing(keys []string) string {
	const most = 8
	keys = slices.Sorted(slices.Values(keys))
	text := fmt.Sprintf("%q", keys[:min(most, len(keys))])
	if more := len(keys) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func newHeldError(key string, left int64, label string, holders int) *HeldError {
	h := &HeldError{Key: key, Label: label, Holders: max(holders, 1)}
	if left >= 0 {
		h.TimeLeft = timing.Millis(max(left, 1))
	}
	return h
}

// Is makes errors.Is(err, ErrNotAcquired) true.
func (e *HeldError) Is(target error) bool { return target == ErrNotAcquired }

// opError is an outcome with the act, the key and the reason around it.
type opError struct {
	act     string // "acquire", "release", ...
	key     string
	outcome error // one of the sentinels
	cause   error // may be nil
	context error // the caller's ended context, where that ended the wait; may be nil
	logged  bool  // see Logged
}

// Logged reports whether a [LogTrace] of the lock has a line about this error, or will have one. The adapters, which log a
// loss if nobody else does, ask for that.
func (e *opError) Logged() bool { return e.logged }

func (e *opError) Error() string {
	s := "holdfast: " + e.act
	if e.key != "" {
		s += fmt.Sprintf(" %q", e.key)
	}
	s += ": " + bare(e.outcome)
	if e.cause != nil {
		s += ": " + bare(e.cause)
	}
	if e.context != nil {
		s += ": " + bare(e.context)
	}
	return s
}

func (e *opError) Unwrap() []error {
	errs := make([]error, 0, 3)
	for _, err := range []error{e.outcome, e.cause, e.context} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// bare drops the package's name from a text that stands inside another of the package's errors.
func bare(err error) string {
	const name = "holdfast: "
	s := err.Error()
	if len(s) > len(name) && s[:len(name)] == name {
		return s[len(name):]
	}
	return s
}

// invalid is an ErrInvalid with its reason.
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "holdfast: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == ErrInvalid }

// both is errors.Join without another form around one.
func both(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return errors.Join(a, b)
}
