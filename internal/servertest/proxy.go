package servertest

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// FaultProxy is a TCP proxy on the loopback interface whose connections can be
// cut, delayed and reset. Commands of a Redis client can also be judged one by
// one; the bytes of any other protocol pass as they come.
//
// While a direction is cut, new connections are still accepted, since the
// kernel does that for any listener, and their bytes held back.
type FaultProxy struct {
	faults
	t        testing.TB
	listener net.Listener
	serving  sync.WaitGroup
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
	p := &FaultProxy{faults: newFaults(), t: t, listener: l, upstream: upstream}
	p.serving.Go(p.serve)
	t.Cleanup(p.Close)
	return p
}

// Close ends the proxy and its connections, also those that are cut. It is
// called at the end of the test, but that is too late for a client that was made
// elsewhere: close the proxy before it.
func (p *FaultProxy) Close() {
	_ = p.listener.Close()
	p.end()
	p.serving.Wait()
}

// Client returns a client of the proxy with go-redis' default options, changed
// by opts. The end of the test closes it, after the proxy.
func (p *FaultProxy) Client(opts ...func(*redis.Options)) *redis.Client {
	p.t.Helper()
	return client(p.t, p.Addr(), p.Close, opts)
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

func (p *FaultProxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		// Apart from the loop, so that a slow upstream delays nobody else.
		p.serving.Go(func() {
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
