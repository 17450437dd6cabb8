package history

import (
	"encoding/json"
	"net"
	"sync"
)

// Registers are what the locks protect, one to a lock: they live outside of Redis and of the workers, and remember what
// they did for whom.
type Registers struct {
	careless bool // they take the writes of old tokens too
	listener net.Listener
	serving  sync.WaitGroup

	mu   sync.Mutex // guards what follows
	all  map[string]*register
	did  map[call]FenceOutput
	open map[net.Conn]bool
}

type register struct{ mark, value int64 }

// call names one of a worker's calls.
type call struct{ worker, op int }

// request is a read or a write.
type request struct {
	Worker, Op int
	Write      bool
	Key        string
	Token      int64
	Value      int64
}

// Serve makes registers that listen on the loopback interface until Close. Careless ones refuse no token.
func Serve(careless bool) (*Registers, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Registers{careless: careless, listener: l, all: map[string]*register{}, did: map[call]FenceOutput{}, open: map[net.Conn]bool{}}
	r.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			r.open[c] = true
			r.mu.Unlock()
			r.serving.Go(func() { r.serve(c) })
		}
	})
	return r, nil
}

// Addr is where they listen.
func (r *Registers) Addr() string { return r.listener.Addr().String() }

// Close ends them: now, or once the workers are gone and what they have sent is done.
func (r *Registers) Close(now bool) {
	_ = r.listener.Close()
	if now {
		r.mu.Lock()
		for c := range r.open {
			_ = c.Close()
		}
		r.mu.Unlock()
	}
	r.serving.Wait()
}

func (r *Registers) serve(c net.Conn) {
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for {
		var q request
		if in.Decode(&q) != nil {
			return
		}
		if out.Encode(r.take(q)) != nil {
			return
		}
	}
}

// take is where a read or a write takes effect.
func (r *Registers) take(q request) FenceOutput {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.all[q.Key]
	if g == nil {
		g = &register{}
		r.all[q.Key] = g
	}
	out := FenceOutput{Refused: q.Token < g.mark && !r.careless}
	if !out.Refused {
		g.mark = max(g.mark, q.Token)
		if q.Write {
			g.value = q.Value
		} else {
			out.Value = g.value
		}
	}
	r.did[call{q.Worker, q.Op}] = out
	return out
}

// outcome is what became of a call that its worker did not live to hear of.
func (r *Registers) outcome(worker, op int) (FenceOutput, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, ok := r.did[call{worker, op}]
	return out, ok
}
