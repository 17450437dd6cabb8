package sqlfence

import (
	"errors"
	"fmt"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// The errors to branch on.
var (
	// ErrStale: the database has seen a larger token, so another holder has taken the lock over. This holder's work is void;
	// repeating it is useless. The error is a [*StaleError].
	ErrStale = errors.New("sqlfence: token is stale")

	// ErrCommitUnknown: the connection broke, or the context ended, during COMMIT. The transaction may be committed or not,
	// or may still become so. Nothing was repeated: read first what it would have written.
	//
	// On MySQL, except from [Fence.Commit], it also reports a transaction that had ended before COMMIT: see [Fence.WithTx].
	//
	// A COMMIT that the database refused returns another error. On PostgreSQL such a refusal has severity ERROR, and neither
	// SQLSTATE 40003 nor class 08; or it is 25P03, from idle_in_transaction_session_timeout, which lib/pq does not pass on.
	ErrCommitUnknown = errors.New("sqlfence: outcome of the commit is unknown")

	// ErrNoToken: the context carries no mark, and no lock that fences.
	ErrNoToken = errors.New("sqlfence: the context carries no lock that fences, and no token: pass the context of the lock, or one with a Mark")
)

// StaleError is an [ErrStale]. It matches [holdfast.ErrLost] too: the lock went to the holder of the newer token.
type StaleError struct {
	Resource string // the lock's key
	Token    int64  // the token that was refused
	Current  int64  // the largest token that the database has seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("sqlfence: token %d for %q is stale: the database has seen %d", e.Token, e.Resource, e.Current)
}

// Is is for [errors.Is].
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
