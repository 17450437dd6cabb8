package servertest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// FaultProxy is a TCP proxy on the loopback interface whose connections can be
// cut, delayed and reset. Commands of a Redis client can also be judged one by
// one; the bytes of any other protocol pass as they come.
//
// While a direction is cut, new connections are still accepted, since the
// kernel does that for any listener, and their bytes held back.
type FaultProxy struct {
	faults
	listener net.Listener
	upstream string // faults.mu guards it
}

// Proxy starts a proxy before the server at upstream, a host:port, and ends it
// with the test. It need not be up yet: a connection made while the server is
// down is closed at once.
func Proxy(t testing.TB, upstream string) *FaultProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("servertest: proxy: %v", err)
	}
	p := &FaultProxy{faults: newFaults(), listener: l, upstream: upstream}

	var serving sync.WaitGroup
	serving.Go(func() { p.serve(&serving) })
	t.Cleanup(func() {
		_ = l.Close()
		p.end()
		serving.Wait()
	})
	return p
}

// Addr returns the proxy's own host:port.
func (p *FaultProxy) Addr() string { return p.listener.Addr().String() }

// Move has new connections go to the server at upstream from now on, and closes
// the others, but for those that have subscribed: as a client does that follows
// a failover in which the old master lives on.
func (p *FaultProxy) Move(upstream string) {
	p.faults.mu.Lock()
	p.upstream = upstream
	p.faults.mu.Unlock()
	for _, r := range p.open() {
		if !r.listening() {
			r.kill()
		}
	}
}

func (p *FaultProxy) serve(serving *sync.WaitGroup) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		// Apart from the loop, so that a slow upstream delays nobody else.
		serving.Go(func() {
			p.faults.mu.Lock()
			upstream := p.upstream
			p.faults.mu.Unlock()
			server, err := net.DialTimeout("tcp", upstream, 5*time.Second)
			if err != nil {
				_ = client.Close()
				return
			}
			p.connect(client, server)
		})
	}
}
