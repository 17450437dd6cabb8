package main

import (
	"net"
	"time"
)

// slowProxy passes on the bytes of its connections late, half of it in each direction.
// It is not servertest's, which reads and copies each command, as faults are injected by command: all of that would be part
// of the allocations and of the processor time that are measured here.
type slowProxy struct {
	listener net.Listener
	upstream string
	late     time.Duration
}

func startSlowProxy(upstream string, late time.Duration) (*slowProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &slowProxy{l, upstream, late}
	go p.serve()
	return p, nil
}

func (p *slowProxy) addr() string { return p.listener.Addr().String() }

// close lets open connections go on until either end closes.
func (p *slowProxy) close() { _ = p.listener.Close() }

func (p *slowProxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			server, err := net.Dial("tcp", p.upstream)
			if err != nil {
				_ = client.Close()
				return
			}
			go p.pass(client, server)
			go p.pass(server, client)
		}()
	}
}

// delayed is some bytes and when they are due.
type delayed struct {
	data []byte
	due  time.Time
}

func (p *slowProxy) pass(from, to net.Conn) {
	way := make(chan delayed, 1024)
	go func() {
		defer close(way)
		for {
			chunk := make([]byte, 4096)
			n, err := from.Read(chunk)
			if n > 0 {
				way <- delayed{chunk[:n], time.Now().Add(p.late / 2)}
			}
			if err != nil {
				return
			}
		}
	}()
	for d := range way {
		time.Sleep(time.Until(d.due))
		if _, err := to.Write(d.data); err != nil {
			_ = from.Close() // then the reader ends, and what it still has is dropped
		}
	}
	_ = to.Close()
}
