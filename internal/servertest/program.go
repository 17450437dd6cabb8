package servertest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// Program is what of a test this package needs, for programs that start servers.
type Program struct {
	testing.TB // nil: only the methods below are there
	cleanups   []func()
	failure    error
}

// Do runs fn on a goroutine of its own, which Fatal ends, and returns how it failed.
func (p *Program) Do(fn func()) error {
	p.failure = nil
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	<-done
	return p.failure
}

// End ends all that was started.
func (p *Program) End() {
	_ = p.Do(func() {
		for n := len(p.cleanups) - 1; n >= 0; n-- {
			last := p.cleanups[n]
			p.cleanups = p.cleanups[:n]
			last()
		}
	})
}

func (*Program) Helper() {}

func (p *Program) Cleanup(fn func()) { p.cleanups = append(p.cleanups, fn) }

func (p *Program) TempDir() string {
	dir, err := os.MkdirTemp("", "holdfast-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (p *Program) Errorf(format string, args ...any) { p.failure = fmt.Errorf(format, args...) }

func (p *Program) Fatal(args ...any) {
	p.failure = errors.New(fmt.Sprint(args...))
	runtime.Goexit()
}

func (p *Program) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

// Skipf is called where a server is not installed.
func (p *Program) Skipf(format string, args ...any) { p.Fatalf(format, args...) }
