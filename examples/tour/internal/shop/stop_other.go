//go:build !unix

package shop

import "errors"

// CanStop reports whether this system can stop a process and let it go on.
const CanStop = false

// Stop fails.
func (p *Process) Stop() error { return errors.ErrUnsupported }

// GoOn fails.
func (p *Process) GoOn() error { return errors.ErrUnsupported }
