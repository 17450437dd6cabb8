package servertest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Child is another process of the test binary, for tests that stop and kill
// what they test. It does not outlive the test binary, on Linux also where that
// is killed, and where the child is stopped.
type Child struct {
	p     *process
	stdin io.Closer
}

// StartChild starts the test binary once more, with env, NAME=value, in its
// environment: TestMain has to look for that, and run no tests. What the child
// prints goes to read on a goroutine of its own, or nowhere where read is nil;
// an error of read is one of the child. The caller has to Kill the child, or
// Leave it.
func StartChild(env string, read func(io.Reader) error) (*Child, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	reading := func() error { return nil }
	if read != nil {
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		reading = func() error { return read(stdout) }
	}
	p, err := startReading(cmd, reading)
	if err != nil {
		return nil, err
	}
	return &Child{p, stdin}, nil
}

// Pause stops the child as a frozen machine would. It fails where the system
// has no means for that.
func (c *Child) Pause() error { return c.p.Pause() }

// Resume continues a paused child; others do not notice.
func (c *Child) Resume() { _ = c.p.Resume() }

// Kill ends the child at once, also a paused one, and waits until it is gone
// and what it had printed is read. It does nothing to one that has ended.
func (c *Child) Kill() { c.p.Kill() }

// Gone reports whether the child has ended.
func (c *Child) Gone() bool { return c.p.Gone() }

// Leave ends the child's standard input, by which a child is to know that it is
// no longer needed, waits for its end and returns how that was. A child that
// takes longer than patience is killed.
func (c *Child) Leave(patience time.Duration) error {
	_ = c.stdin.Close()
	select {
	case <-c.p.Done():
		return c.p.Err()
	case <-time.After(patience):
		c.Kill()
		return fmt.Errorf("it did not end within %v", patience)
	}
}
