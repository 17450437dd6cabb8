package sqlfence

import (
	"errors"
	"fmt"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// The errors that a caller may have to branch on. The error for an argument that can never work matches
// [holdfast.ErrInvalid]. The error for a lost or released lock in the context matches [holdfast.ErrLost].
var (
	// ErrStale: the database has seen a larger token, so another holder has taken the lock over. This holder's work is void.
	// Repeating it with the same token is useless. The error is a [*StaleError], which matches [holdfast.ErrLost] too.
	ErrStale = errors.New("sqlfence: token is stale")

	// ErrCommitUnknown: the connection broke, or the context ended, during COMMIT. The transaction may be committed or not,
	// or may still become so. Nothing was repeated. Read what it would have written before you repeat it.
	//
	// On MySQL, except from [Fence.Commit], the error also reports a transaction that had ended before COMMIT, by an ignored
	// deadlock or by a statement that commits implicitly. The statements after the end were not guarded.
	//
	// A COMMIT that the database refused returns another error. On PostgreSQL such a refusal has severity ERROR, and neither
	// SQLSTATE 40003 nor class 08.
	ErrCommitUnknown = errors.New("sqlfence: outcome of the commit is unknown")

	// ErrNoToken: the context carries no token, and no lock that fences: one with WithLimit or WithShared does not.
	ErrNoToken = errors.New("sqlfence: the context carries no lock that fences, and no token: pass the context of the lock, or a context from WithToken")
)

// StaleError has the token that was refused and the newer one. It matches [ErrStale] and [holdfast.ErrLost].
type StaleError struct {
	Resource string // the resource, or the table of a fenced row
	Token    int64  // the token that was refused
	Current  int64  // the largest token that the database has seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("sqlfence: token %d for %q is stale: the database has seen %d", e.Token, e.Resource, e.Current)
}

// Is matches ErrStale, and holdfast.ErrLost because the lock went to the holder of the newer token.
func (e *StaleError) Is(target error) bool { return target == ErrStale || target == holdfast.ErrLost }

// unknownError is an ErrCommitUnknown with its cause.
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
