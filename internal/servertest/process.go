package servertest

import (
	"bytes"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// process is a child that, on Linux, the kernel ends with this process.
type process struct {
	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed once the child is gone and reaped
	err  error         // how it ended, then
}

// startProcess starts cmd and keeps the end of what it prints.
func startProcess(cmd *exec.Cmd) (*process, error) {
	log := &tail{}
	cmd.Stdout, cmd.Stderr = log, log
	p, err := startReading(cmd, func() error { return nil })
	if err != nil {
		return nil, err
	}
	p.log = log
	return p, nil
}

// startReading starts cmd, and calls read before it waits for the end, which
// closes pipes. The kernel ties the parent-death signal to the thread that forked, not
// to the process, and the runtime ends threads when it likes: the goroutine
// that forks therefore keeps its thread for the child's whole life.
func startReading(cmd *exec.Cmd, read func() error) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	dieWithParent(cmd)

	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = read()
		if err := cmd.Wait(); p.err == nil {
			p.err = err
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Pid returns the child's process id.
func (p *process) Pid() int { return p.cmd.Process.Pid }

// Log returns the end of what the child printed.
func (p *process) Log() string { return p.log.String() }

// Done is closed once the child has ended.
func (p *process) Done() <-chan struct{} { return p.done }

// Err is how the child ended, once it has, or the error of reading from it.
func (p *process) Err() error { return p.err }

// Pause stops the child as a frozen machine would. It fails where the system
// has no means for that.
func (p *process) Pause() error { return pauseProcess(p.cmd.Process) }

// Resume continues a paused child; others do not notice.
func (p *process) Resume() error { return resumeProcess(p.cmd.Process) }

// Gone reports whether the child has ended.
func (p *process) Gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Kill ends the child at once, also a stopped one, and waits for it.
func (p *process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = resumeProcess(p.cmd.Process)
	<-p.done
}

// Stop asks the child to end with its own shutdown signal, which lets it take
// its children along, and kills it when it does not.
func (p *process) Stop(patience time.Duration) {
	_ = resumeProcess(p.cmd.Process)
	_ = quitProcess(p.cmd.Process)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.Kill()
	}
}

// tail keeps the end of what a child printed, for the message of a failure.
type tail struct {
	mu  sync.Mutex // guards buf; never held while writing anywhere else
	buf bytes.Buffer
}

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - tailBytes; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// Poll calls ready every few milliseconds until it returns nil, the child
// ends, or the patience is over.
func (p *process) Poll(patience time.Duration, ready func() error) error {
	deadline := time.Now().Add(patience)
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for {
		err := ready()
		if p.Gone() {
			return fmt.Errorf("it ended: %v\n%s", p.cmd.ProcessState, p.log)
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %v: %w\n%s", patience, err, p.log)
		}
		select {
		case <-pause.C:
		case <-p.done:
		}
	}
}
