package holdfast

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core/internal/quorum"
	"github.com/holdfast-go/holdfast/core/internal/timing"
)

// The outcomes a caller may have to branch on. Match them with [errors.Is]; every error of this package
// that concerns a key has the key in its text.
var (
	// ErrNotAcquired: another holder has the lock. The error that matches it is a [*HeldError], which says how long the
	// holder's lease still runs.
	ErrNotAcquired = errors.New("holdfast: lock is held elsewhere")

	// ErrLost: the lock was ours and is gone. Its lease expired, or Redis no longer has the key, or another holder has
	// it. Whatever ran under the lock may have overlapped with another holder; only the fencing token tells the two
	// apart. [Err] and package sqlfence return it for a released lock too.
	ErrLost = errors.New("holdfast: lock was lost")

	// ErrUnavailable: Redis could not be asked, refused, or did not answer in time. It means neither that another holder
	// has the lock nor that the lock was lost.
	ErrUnavailable = errors.New("holdfast: no verdict from redis")

	// ErrClosed: the [Locker] was shut down.
	ErrClosed = errors.New("holdfast: locker is shut down")

	// ErrSelfDeadlock: the context already holds this lock, so that waiting for it would never end.
	ErrSelfDeadlock = errors.New("holdfast: the context already holds this lock")

	// ErrTick: the tick given to [Locker.Claim] is outside of the window around Redis' time, see [WithTickWindow].
	ErrTick = errors.New("holdfast: tick is out of the window")

	// ErrInvalid: a key, an option or another argument that can never work.
	ErrInvalid = errors.New("holdfast: invalid argument")
)

// errReleased is what an ended lock reports after its own Release.
var errReleased = errors.New("holdfast: lock was released")

// HeldError describes the holder of a lock that could not be acquired. It matches [ErrNotAcquired].
type HeldError struct {
	Key string // as stored in Redis, prefix included

	// TimeLeft is what was left of the holder's lease when Redis answered, at least 1 ms. A holder that renews keeps the
	// lock longer. TimeLeft is 0 if the key never expires, which happens only with holders that do not use holdfast.
	TimeLeft time.Duration

	// Holders is 1 for a holder that is alone, and otherwise how many hold the lock together: see [WithLimit] and
	// [WithShared]. Readers that share an acquisition count as one. If there are several holders, TimeLeft runs until the
	// first of their leases expires.
	Holders int

	// Label is the holder's [WithLabel]. It is empty for a holder without one, with WithShared or a WithLimit above 1, or
	// without holdfast.
	Label string

	// Here reports that the holder is another call of this Locker. It may be false all the same with WithLocalHandover(0,
	// d), and for a holder with [WithReentryID].
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
}

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

// QuarantineError says which masters did not vote because they had started too recently and may have forgotten a lock.
// See [WithQuarantine] and [NewRedLock]. It is found behind an [ErrUnavailable].
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

// public is an error from below as a caller is to find it.
func public(err error) error {
	switch below := err.(type) {
	case quorum.TwinsError:
		return invalid("%s", below)
	case *quorum.Failure:
		if len(below.Names) == 0 {
			return err
		}
		young := &QuarantineError{below.Names, below.Until}
		if below.AllYoung() {
			return young
		}
		return &twoErrors{below, young}
	}
	return err
}

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

// twoErrors reads as the first and matches both.
type twoErrors struct{ first, second error }

func (e *twoErrors) Error() string   { return e.first.Error() }
func (e *twoErrors) Unwrap() []error { return []error{e.first, e.second} }
