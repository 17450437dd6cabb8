package ginlock

import (
	"errors"
	"slices"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. They run on the
// request's goroutine, before its answer, so they must return quickly. A [holdfast.Trace] of the Locker reports what
// happens to the lock.
type Trace struct {
	// Refused: the chain does not run.
	Refused func(c *gin.Context, err error)
	// Lost: the lock was lost while the chain ran.
	Lost func(c *gin.Context, err error)
	// Unreleased: Redis did not confirm the release within 1 s. The lock may stay until its lease expires.
	Unreleased func(c *gin.Context, err error)
	// Unlocked: the chain runs without the lock, see [WithFailOpen].
	Unlocked func(c *gin.Context, err error)
}

// hook selects one hook of a Trace.
type hook func(*Trace) func(*gin.Context, error)

func refused(t *Trace) func(*gin.Context, error)    { return t.Refused }
func lost(t *Trace) func(*gin.Context, error)       { return t.Lost }
func unreleased(t *Trace) func(*gin.Context, error) { return t.Unreleased }
func unlocked(t *Trace) func(*gin.Context, error)   { return t.Unlocked }

// errorsTrace has the hooks that apply if no Trace sets them. A busy key and a client's mistake are not errors of the
// server.
var errorsTrace = Trace{
	Refused: func(c *gin.Context, err error) {
		if !errors.Is(err, holdfast.ErrNotAcquired) && !errors.Is(err, holdfast.ErrInvalid) {
			_ = c.Error(err)
		}
	},
	Lost: func(c *gin.Context, err error) {
		if !slices.ContainsFunc(c.Errors, func(e *gin.Error) bool { return errors.Is(e.Err, holdfast.ErrLost) }) {
			_ = c.Error(err)
		}
	},
	Unreleased: func(c *gin.Context, err error) { _ = c.Error(err) },
	Unlocked:   func(c *gin.Context, err error) { _ = c.Error(err) },
}

func (c *config) tell(request *gin.Context, h hook, err error) {
	wiring.Tell(c.traces, &errorsTrace, h, request, err)
}
