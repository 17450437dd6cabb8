package tick

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/core/internal/protocol"
)

// An Option configures one claim or, given to an adapter, all of them.
type Option interface{ apply(*protocol.Window) error }

const (
	defaultBehind = time.Hour
	defaultAhead  = 10 * time.Second
	maxWindow     = 366 * 24 * time.Hour
)

type option func(*protocol.Window) error

func (o option) apply(w *protocol.Window) error { return o(w) }

// WithWindow sets how far a tick may be behind Redis' time, 1 s or more, and how far ahead of it; at most 366 days.
// Default: 1 h and 10 s. Redis remembers a name until its latest tick is older than behind, or than the gap of
// [WithMinGap]. A replica whose clock is ahead gets its ticks too early, unless it waits as a [Clock] does.
func WithWindow(behind, ahead time.Duration) Option {
	return option(func(w *protocol.Window) error {
		if behind < time.Second || behind > maxWindow || ahead < 0 || ahead > maxWindow {
			return invalid("WithWindow(%v, %v): want 1s to %v and 0 to %v", behind, ahead, maxWindow, maxWindow)
		}
		w.Behind, w.Ahead = behind, ahead
		return nil
	})
}

// WithMinGap keeps ticks apart: a tick less than d after the latest granted one counts as taken. It is for replicas
// that count their periods on their own ("@every 1h"). Set d to the period, or a little less, at most 366 days.
// Default: 0.
func WithMinGap(d time.Duration) Option {
	return option(func(w *protocol.Window) error {
		if d < 0 || d > maxWindow {
			return invalid("WithMinGap(%v): want 0 to %v", d, maxWindow)
		}
		w.Gap = d
		return nil
	})
}

// invalid is a holdfast.ErrInvalid with its reason.
func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }

type invalidError struct{ reason string }

func (e *invalidError) Error() string        { return "tick: " + e.reason }
func (e *invalidError) Is(target error) bool { return target == holdfast.ErrInvalid }
