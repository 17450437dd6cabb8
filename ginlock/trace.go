package ginlock

import (
	"errors"
	"slices"

	"github.com/gin-gonic/gin"
	holdfast "github.com/holdfast-go/holdfast/core"
)

// Trace is a set of hooks, in the manner of net/http/httptrace.ClientTrace. Any may be nil. They run in the goroutine of the
// request, and must return soon; several may run at once. The error of Refused and Lost is the one that a handler given to
// [WithErrorHandler] gets. What happens to the lock itself is told to a [holdfast.Trace] of the Locker. How long a refused
// request took, a middleware in front can tell.
type Trace struct {
	// Refused: the chain did not run, and the request is answered in its place. [New] lists the errors.
	Refused func(c *gin.Context, err error)
	// Lost: the lock was lost while the chain ran. err matches holdfast.ErrLost.
	Lost func(c *gin.Context, err error)
	// Unreleased: Redis did not confirm the release within 1 s. The lock may stay until its lease ends, if attempts in the
	// background do not free it before. err matches holdfast.ErrUnavailable.
	Unreleased func(c *gin.Context, err error)
	// Unlocked: the chain runs without the lock, see [WithFailOpen]. err matches holdfast.ErrUnavailable.
	Unlocked func(c *gin.Context, err error)
}

// hook is one of a Trace.
type hook func(*Trace) func(*gin.Context, error)

func refused(t *Trace) func(*gin.Context, error)    { return t.Refused }
func lost(t *Trace) func(*gin.Context, error)       { return t.Lost }
func unreleased(t *Trace) func(*gin.Context, error) { return t.Unreleased }
func unlocked(t *Trace) func(*gin.Context, error)   { return t.Unlocked }

// errorsTrace is for hooks that no Trace sets. What the client did or met is no error of the server.
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

// tell calls one hook of every Trace, or of errorsTrace where none has it.
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
