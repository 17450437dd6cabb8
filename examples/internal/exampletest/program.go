// Package exampletest runs an example inside a test and reads what it prints.
package exampletest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// patience only catches programs that hang: a loaded machine can take long for anything.
const patience = time.Minute

// Redis starts a miniredis that ends with the test, and names it in REDIS_ADDR.
func Redis(t *testing.T) *miniredis.Miniredis {
	t.Helper()
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	t.Setenv("REDIS_ADDR", server.Addr())
	return server
}

// Program is a running example.
type Program struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex // guards the following
	text bytes.Buffer
	more chan struct{} // closed when text grows
	err  error         // of run, once done is closed
}

// Start begins run, and ends it at the end of the test at the latest.
func Start(t testing.TB, run func(context.Context, io.Writer) error) *Program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Program{t: t, cancel: cancel, done: make(chan struct{}), more: make(chan struct{})}
	go func() {
		err := run(ctx, p)
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.done)
	}()
	t.Cleanup(func() {
		cancel()
		p.wait()
	})
	return p
}

// Replicas returns a program that runs another one n times at once.
func Replicas(n int, run func(context.Context, io.Writer) error) func(context.Context, io.Writer) error {
	return func(ctx context.Context, out io.Writer) error {
		errs := make([]error, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { errs[i] = run(ctx, out) })
		}
		all.Wait()
		return errors.Join(errs...)
	}
}

// Write is how the program prints.
func (p *Program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.Write(b)
	close(p.more)
	p.more = make(chan struct{})
	return len(b), nil
}

// Output returns what the program has printed so far.
func (p *Program) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// Await waits until the program has printed n lines that contain text, and returns them.
func (p *Program) Await(n int, text string) []string {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		p.mu.Lock()
		lines, more := matching(p.text.String(), text), p.more
		p.mu.Unlock()
		if len(lines) >= n {
			return lines
		}
		select {
		case <-more:
		case <-p.done:
			// It might have printed just before its end.
			if lines := matching(p.Output(), text); len(lines) >= n {
				return lines
			}
			p.t.Fatalf("it ended without %d lines of %q: %v\n%s", n, text, p.err, p.Output())
		case <-timeout:
			p.t.Fatalf("no %d lines of %q within %v:\n%s", n, text, patience, p.Output())
		}
	}
}

// matching returns the complete lines that contain text.
func matching(output, text string) (found []string) {
	for line := range strings.Lines(output) {
		if strings.HasSuffix(line, "\n") && strings.Contains(line, text) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

// Interrupt is Ctrl-C. It does not wait.
func (p *Program) Interrupt() { p.cancel() }

// Stop interrupts the program and waits for its end, which must be without an error.
func (p *Program) Stop() {
	p.t.Helper()
	p.cancel()
	p.Wait()
}

// Wait waits for the program to end on its own, which must be without an error, and returns what it has printed.
func (p *Program) Wait() string {
	p.t.Helper()
	if p.wait(); p.err != nil {
		p.t.Fatalf("got error %v after\n%s", p.err, p.Output())
	}
	return p.Output()
}

// Err waits for the program to end on its own and returns its error.
func (p *Program) Err() error {
	p.t.Helper()
	p.wait()
	return p.err
}

func (p *Program) wait() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Errorf("it did not end within %v:\n%s", patience, p.Output())
		p.t.FailNow()
	}
}
