package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows how a scene is getting on. On a terminal it is one line that is overwritten, anywhere else it is a new line
// every half second.
type progress struct {
	out      io.Writer
	terminal bool
	every    time.Duration
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, every: 500 * time.Millisecond}
	if f, ok := out.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	if p.terminal {
		p.every = 100 * time.Millisecond
	}
	return p
}

// follow writes until done is called, which writes the last line.
func (p *progress) follow(t *tally) (done func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(p.every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.line(t, false)
			case <-stop:
				p.line(t, true)
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

func (p *progress) line(t *tally, last bool) {
	before, after := "", "\n"
	if p.terminal {
		before = "\r\x1b[K" // to the start of the line, and erase it
		if !last {
			after = ""
		}
	}
	fmt.Fprintf(p.out, "%s   %4.1f s   %4d answered   %4d sold   %4d refused   %4d had to wait%s", before,
		time.Since(t.began).Seconds(), t.answers.Load(), t.bought.Load(), t.refused.Load(), t.waits.Load(), after)
}
