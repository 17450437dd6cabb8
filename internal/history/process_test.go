package history

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"
)

// process is a worker. It does not outlive the test, also where it is stopped.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	over  chan struct{} // closed once it is gone and its journal read
	err   error         // of its end, then

	mu      sync.Mutex // guards what follows
	log     *Log
	counted Stamp // when it last counted on a hold
	begun   map[int]What
	granted map[What]int
}

func start(o Orders) (*process, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{
		cmd: exec.Command(os.Args[0]), over: make(chan struct{}), log: &Log{Worker: o.ID},
		begun: map[int]What{}, granted: map[What]int{},
	}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	journal, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	dieWithParent(p.cmd)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for the worker's whole life: its parent is the thread
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = ReadJournal(journal, p.read)
		if ended := p.cmd.Wait(); err == nil {
			err = ended
		}
		p.err = err
		close(p.over)
	}()
	return p, <-started
}

func (p *process) read(e Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.Entries = append(p.log.Entries, e)
	switch {
	case e.Kind == Began:
		p.begun[e.Op] = e.What
	case e.Kind == Counts:
		p.counted = e.At
	case e.Kind == Done:
		if e.Out == Granted {
			p.granted[p.begun[e.Op]]++
		}
		delete(p.begun, e.Op)
	}
}

// kill ends it in the middle of everything.
func (p *process) kill() {
	at := Before(time.Now())
	if p.cmd.Process.Kill() == nil {
		p.mu.Lock()
		p.log.Killed = at
		p.mu.Unlock()
	}
	resumeProcess(p.cmd.Process)
	<-p.over
}

// leave has it finish what it is at.
func (p *process) leave(t *testing.T) {
	t.Helper()
	_ = p.stdin.Close()
	select {
	case <-p.over:
	case <-time.After(hang):
		t.Errorf("worker %d does not end", p.log.Worker)
		p.kill()
	}
	if p.err != nil && p.log.Killed == 0 {
		t.Errorf("worker %d ended with %v", p.log.Worker, p.err)
	}
}
