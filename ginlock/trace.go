package ginlock

import (
	"errors"
	"slices"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// Trace is a set of hooks, in the style of net/http/httptrace.ClientTrace. Any of them may be nil. Hooks run on the
// goroutine that does the work, so they must return quickly, and several may run at once. That goroutine is the request's.
//
// Refused and Lost receive the error that a handler given to [WithErrorHandler] receives. For events of the lock itself,
// give the Locker a [holdfast.Trace]. To measure how long a refused request took, use an earlier middleware.
type Trace struct {
	// Refused is called if the request is refused, before it is answered: the chain does not run. [New] lists the errors.
	Refused func(c *gin.Context, err error)
	// Lost is called after the chain if the lock was lost while it ran, before any answer to that. err matches
	// holdfast.ErrLost.
	Lost func(c *gin.Context, err error)
	// Unreleased is called if Redis did not confirm the release within 1 s. The lock may stay until its lease expires, unless
	// attempts in the background free it earlier. err matches holdfast.ErrUnavailable.
	Unreleased func(c *gin.Context, err error)
	// Unlocked is called if the chain runs without the lock, see [WithFailOpen]. err matches holdfast.ErrUnavailable.
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

// tell calls one hook of every Trace that sets it. If none does, it calls that of errorsTrace.
func (c *config) tell(request *gin.Context, h hook, err error) {
	told := false
	for _, t := range c.traces {
		if f := h(t); f != nil {
			f(request, err)
			told = true
		}
	}
	if !told {
		h(&errorsTrace)(request, err)
	}
}
