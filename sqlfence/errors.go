package sqlfence

import (
	"errors"
	"fmt"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// The errors that a caller may have to branch on. Arguments that can never work match [holdfast.ErrInvalid]; a lock in the
// context that is lost or released matches [holdfast.ErrLost].
var (
	// ErrStale: the database has seen a larger token. Its holder took the lock over; this holder's work
	// is void, and repeating it with the same token is useless. The error is a [*StaleError], which
	// matches [holdfast.ErrLost] too.
	ErrStale = errors.New("sqlfence: token is stale")

	// ErrCommitUnknown: the connection broke, or the context ended, while the transaction committed. It may have
	// been committed or not, or may still be. Nothing was repeated. Read what it would have written before doing
	// it again.
	//
	// On MySQL the error also reports, but for Commit, a transaction that had ended before COMMIT, by a deadlock that was
	// ignored or a statement that commits by itself: the statements after that were not guarded. A COMMIT that the database
	// refused gives another error: on PostgreSQL, one that it answered with severity ERROR, but for SQLSTATE 40003 and class
	// 08.
	ErrCommitUnknown = errors.New("sqlfence: outcome of the commit is unknown")

	// ErrNoToken: the context carries no lock that fences, and no token.
	ErrNoToken = errors.New("sqlfence: the context carries no lock that fences, and no token: pass the context of the lock, or one of WithToken")
)

// StaleError says by how much a token is too old. It matches [ErrStale].
type StaleError struct {
	Resource string // the resource, or the table of a fenced row
	Token    int64  // the one that was refused
	Current  int64  // the largest that the database has seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("sqlfence: token %d for %q is stale: the database has seen %d", e.Token, e.Resource, e.Current)
}

// Is makes errors.Is(err, ErrStale) true, and errors.Is(err, holdfast.ErrLost): the lock went to the holder of the newer token.
func (e *StaleError) Is(target error) bool { return target == ErrStale || target == holdfast.ErrLost }

// unknownError is an ErrCommitUnknown with what COMMIT returned.
type unknownError struct{ cause error }

func (e *unknownError) Error() string   { return ErrCommitUnknown.Error() + ": " + e.cause.Error() }
func (e *unknownError) Unwrap() []error { return []error{ErrCommitUnknown, e.cause} }

// failed wraps an error of the database.
func failed(act string, err error) error { return fmt.Errorf("sqlfence: %s: %w", act, err) }

// invalid is a holdfast.ErrInvalid with its reason.
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "sqlfence: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }
