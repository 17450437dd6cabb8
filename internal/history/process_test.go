package history

import (
	"encoding/json"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// process is a worker. It is gone when its journal has been read.
type process struct {
	*servertest.Child

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
	p := &process{log: &Log{Worker: o.ID}, begun: map[int]What{}, granted: map[What]int{}}
	p.Child, err = servertest.StartChild(workerEnv+"="+string(text), func(journal io.Reader) error { return ReadJournal(journal, p.read) })
	return p, err
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
	at, alive := Before(time.Now()), !p.Gone()
	p.Kill()
	if alive {
		p.log.Killed = at
	}
}

// leave has it finish what it is at.
func (p *process) leave(t *testing.T) {
	t.Helper()
	if err := p.Leave(hang); err != nil {
		t.Errorf("worker %d ended with %v", p.log.Worker, err)
	}
}
