package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// fleet is the replicas of the page and their customers.
type fleet struct {
	servers  *shop.Servers
	errOut   io.Writer // for the standard error of the replicas
	live     live
	products []string
	board    *board
	members  []*member
}

func newFleet(servers *shop.Servers, l live, replicas int, products []string, errOut io.Writer) *fleet {
	f := &fleet{servers: servers, errOut: errOut, live: l, products: products}
	var names []string
	for i := range replicas {
		m := &member{fleet: f, name: fmt.Sprintf("replica-%d", i+1)}
		f.members = append(f.members, m)
		names = append(names, m.name)
	}
	f.board = newBoard(l, names, products)
	return f
}

// run runs the fleet. It returns when ctx and all processes have ended.
func (f *fleet) run(ctx context.Context) {
	transport := &http.Transport{MaxIdleConnsPerHost: len(f.products)}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, m := range f.members {
		wg.Go(func() { m.run(ctx) })
		for _, p := range f.products {
			wg.Go(func() { m.serve(ctx, client, p) })
		}
	}
}

func (f *fleet) member(name string) *member {
	for _, m := range f.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// member is a replica that is started again when it has ended.
type member struct {
	fleet *fleet
	name  string

	mu             sync.Mutex
	proc           *shop.Process // nil while none runs
	pausing, still bool          // pausing: asked to pause; still: paused
	killed         bool
}

func (m *member) run(ctx context.Context) {
	f, b := m.fleet, m.fleet.board
	for ctx.Err() == nil {
		p, err := f.servers.StartProcess(ctx, shop.Role{
			Play: Play, Name: m.name, Scene: scene, Fenced: true, Lease: f.live.lease,
			Products: f.products, Payment: f.live.payment, Soft: f.live.soft,
		}, f.errOut)
		if err == nil {
			m.set(p)
			b.become(m.name, "running", p.Pid(), entry{What: "started", Text: fmt.Sprintf("started, process %d", p.Pid())})
			err = m.follow(ctx, p)
		}
		e := entry{What: "ended", Text: "ended"}
		switch {
		case m.set(nil):
			e.What, e.Text = "killed", "killed (SIGKILL); Redis keeps its leases until they end"
		case err != nil && ctx.Err() == nil:
			e.Text = "ended: " + err.Error()
		}
		b.become(m.name, "ended", 0, e)
		if shop.Sleep(ctx, f.live.comeBack) == nil {
			b.become(m.name, "starting", 0, entry{})
		}
	}
}

// set replaces the process, and reports whether the previous one was killed on purpose.
func (m *member) set(p *shop.Process) (killed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	killed = m.killed
	m.proc, m.pausing, m.still, m.killed = p, false, false, false
	return killed
}

// follow passes on what the process reports until the process has ended. It ends the process when ctx ends.
func (m *member) follow(ctx context.Context, p *shop.Process) error {
	farewell := context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		_ = p.End()
		m.pausing = false // too late for a pause
		if m.still {
			_ = p.Kill() // a stopped one cannot end itself
		}
	})
	defer farewell()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ctx.Done():
		case <-over:
			return
		}
		timer := time.NewTimer(shop.Goodbye)
		defer timer.Stop()
		select {
		case <-timer.C:
			_ = p.Kill()
		case <-over:
		}
	}()
	for e := range p.Events {
		if e.Kind != "report" {
			continue
		}
		var r report
		if err := json.Unmarshal([]byte(e.Text), &r); err != nil {
			_ = p.Kill()
			return errors.Join(err, p.Ended())
		}
		if r.What == "ready" {
			m.halt(p)
			continue
		}
		m.fleet.board.report(m.name, r)
	}
	return p.Ended()
}

var errNotNow = errors.New("not in a state that allows this")

// pause makes the replica report when a payment is under way. halt then stops it.
func (m *member) pause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc == nil || m.pausing || m.still {
		return errNotNow
	}
	if err := m.proc.Tell("pause"); err != nil {
		return err
	}
	m.pausing = true
	m.fleet.board.become(m.name, "pausing", 0, entry{})
	return nil
}

// halt stops a replica that is ready for it.
func (m *member) halt(p *shop.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.pausing {
		return
	}
	m.pausing = false
	text := "paused in the middle of a payment (this system has no SIGSTOP: it holds up its own messages)"
	if !m.fleet.live.soft {
		text = "paused (SIGSTOP) in the middle of a payment"
		if err := p.Stop(); err != nil {
			m.fleet.board.become(m.name, "running", 0, entry{What: "failed", Text: "not paused: " + err.Error()})
			_ = p.Tell("resume") // fails if the replica is ending
			return
		}
	}
	m.still = true
	m.fleet.board.become(m.name, "paused", 0, entry{What: "paused", Text: text})
}

func (m *member) resume() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.still {
		return errNotNow
	}
	// Log it before the replica goes on, so that what the replica reports comes later.
	m.still = false
	m.fleet.board.become(m.name, "running", 0, entry{What: "resumed", Text: "resumed: its payment went through, and it goes on to write"})
	err := m.proc.Tell("resume")
	if !m.fleet.live.soft {
		err = errors.Join(err, m.proc.GoOn())
	}
	return err
}

func (m *member) kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc == nil {
		return errNotNow
	}
	m.killed = true
	if err := m.proc.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return errNotNow
}

// hand makes the replica begin or end an act.
func (m *member) hand(order string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc == nil || m.pausing || m.still {
		return errNotNow
	}
	return m.proc.Tell(order)
}

// serve plays the customers of one product at one replica, one after the other.
func (m *member) serve(ctx context.Context, client *http.Client, product string) {
	for n := 1; shop.Sleep(ctx, m.fleet.live.think+rand.N(2*m.fleet.live.think)) == nil; n++ {
		a := &shop.Answer{Product: product, Order: fmt.Sprintf("%s-%s-%d", m.name, product, n)}
		for ctx.Err() == nil && a.Verdict == shop.Failed {
			m.mu.Lock()
			p := m.proc
			m.mu.Unlock()
			pause := m.fleet.live.think
			if p != nil {
				// Asking again is safe, whatever happened to the replica meanwhile: the shop recognizes the order.
				if asked, err := shop.Ask(ctx, client, p.URL, a); err != nil && asked > 0 {
					pause = asked
				}
			}
			if a.Verdict == shop.Failed {
				_ = shop.Sleep(ctx, pause)
			}
		}
	}
}
