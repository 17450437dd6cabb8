package servertest

import (
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A relay carries one connection between a client and its server. Each end has
// a reader that never waits for the other end, so that a cut or a slow client
// cannot block the server, and a writer that applies the faults.
type relay struct {
	faults         *faults
	client, server net.Conn
	up, down       *queue

	once  sync.Once
	done  chan struct{} // closed when the connection is over
	reset atomic.Bool   // it was torn down, not ended by either side
	redis atomic.Bool   // the client speaks RESP

	mu         sync.Mutex // guards all below
	replies    []Verdict  // on the replies to come, in order
	push       Verdict    // on the next pushed frame that is no message
	resp3      bool
	subscriber bool // on RESP2: nothing tells replies from pushes any more
	listens    bool // it has subscribed to something
}

// run relays until both ends are finished. The four loops end one another:
// the first to see an end closes the next queue, and a torn down relay all of them.
func (r *relay) run() {
	var loops sync.WaitGroup
	loops.Go(r.readUp)
	loops.Go(r.writeUp)
	loops.Go(r.readDown)
	loops.Go(r.writeDown)
	loops.Wait()
	r.once.Do(func() { close(r.done) })
	_ = r.client.Close()
	_ = r.server.Close()
}

// kill tears the connection down with everything on its way.
func (r *relay) kill() {
	r.once.Do(func() {
		r.reset.Store(true)
		for _, c := range []net.Conn{r.client, r.server} {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // a reset, not an orderly end; before done, since writeDown closes then
			}
		}
		close(r.done)
		_ = r.client.Close()
		_ = r.server.Close()
	})
}

// receive reads from conn until it ends and feeds each RESP frame to frame.
// From the first bytes on that are none, or cannot start one by what starts
// says, it feeds everything as it comes to raw.
func receive(conn net.Conn, starts func(byte) bool, frame, raw func([]byte)) {
	var pending []byte
	resp := true
	chunk := make([]byte, 16<<10)
	for {
		n, err := conn.Read(chunk)
		if n > 0 && !resp {
			raw(slices.Clone(chunk[:n]))
		} else if n > 0 {
			pending = append(pending, chunk[:n]...)
			for len(pending) > 0 {
				size, err := frameLen(pending)
				if err != nil || !starts(pending[0]) {
					resp = false
					raw(slices.Clone(pending))
					pending = nil
					break
				}
				if size == 0 {
					break
				}
				frame(slices.Clone(pending[:size]))
				pending = pending[size:]
			}
		}
		if err != nil {
			if len(pending) > 0 {
				raw(pending)
			}
			return
		}
	}
}

func (r *relay) readUp() {
	defer r.up.close()
	receive(r.client, func(first byte) bool { return first == '*' }, func(frame []byte) {
		r.redis.Store(true)
		s := segment{data: frame, due: r.faults.due(&r.faults.up), args: bulkStrings(frame)}
		if len(s.args) > 0 {
			s.args[0] = strings.ToLower(s.args[0])
			if !handshake[s.args[0]] {
				s.verdict = r.faults.judge(s.args)
				s.hold = s.verdict.request()
			}
		}
		r.up.push(s)
	}, func(raw []byte) {
		r.up.push(segment{data: raw, due: r.faults.due(&r.faults.up)})
	})
}

func (r *relay) writeUp() {
	lost := false
	for {
		s, ok := r.next(r.up, &r.faults.up)
		if !ok {
			break
		}
		switch s.verdict.action {
		case loseRequestAndClose:
			r.kill()
			return
		case loseRequest:
			lost = true
		}
		if lost {
			continue
		}
		if len(s.args) > 0 {
			r.faults.arrive(s.args[0])
			r.expect(s)
		}
		if _, err := r.server.Write(s.data); err != nil {
			break
		}
	}
	// The client is gone and all it sent has been delivered. A socket is only
	// shut in this direction, since closing it with replies unread would throw
	// away requests that the server has not read yet.
	if half, ok := r.server.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	} else {
		_ = r.server.Close()
	}
}

// expect notes the verdict for the reply to a command about to be sent.
func (r *relay) expect(s segment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch name := s.args[0]; {
	case name == "hello":
		r.resp3 = len(s.args) > 1 && s.args[1] == "3"
	case strings.HasSuffix(name, "subscribe"):
		// The confirmation is a push in RESP3. In RESP2 it looks like a reply,
		// and so does every message from here on.
		r.subscriber = r.subscriber || !r.resp3
		r.listens = true
		r.push = s.verdict
		return
	}
	if r.subscriber {
		r.push = s.verdict
		return
	}
	r.replies = append(r.replies, s.verdict)
}

func (r *relay) listening() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listens
}

// fate returns the verdict on a frame from the server.
func (r *relay) fate(frame []byte) Verdict {
	r.mu.Lock()
	if frame[0] != '>' && !r.subscriber {
		defer r.mu.Unlock()
		if len(r.replies) == 0 {
			return Pass
		}
		v := r.replies[0]
		r.replies = r.replies[1:]
		return v
	}
	if parts := bulkStrings(frame); len(parts) > 2 && strings.HasSuffix(parts[0], "message") {
		r.mu.Unlock() // the hook may use the link
		v := r.faults.judgeMessage(parts[len(parts)-2], parts[len(parts)-1])
		if v.action == loseReply {
			v.action = loseMessage
		}
		return v
	}
	defer r.mu.Unlock()
	v := r.push
	r.push = Pass
	return v
}

func (r *relay) readDown() {
	defer r.down.close()
	lost := false
	// Only a connection that began with a command has replies: other servers
	// speak first, or bytes that look like half a reply and never end.
	receive(r.server, func(byte) bool { return r.redis.Load() }, func(frame []byte) {
		v := r.fate(frame)
		switch v.action {
		case loseMessage:
			return
		case loseReply:
			lost = true
		case loseReplyAndClose:
			lost = true
			r.down.push(segment{reset: true})
		}
		if !lost {
			r.answer(frame, v.reply())
		}
	}, func(raw []byte) {
		if !lost {
			r.answer(raw, nil)
		}
	})
}

// answer queues bytes from the server.
func (r *relay) answer(data []byte, hold <-chan struct{}) {
	r.down.push(segment{data: data, due: r.faults.due(&r.faults.down), hold: hold})
}

func (r *relay) writeDown() {
	for {
		s, ok := r.next(r.down, &r.faults.down)
		if !ok {
			break
		}
		if s.reset {
			r.kill()
			return
		}
		if _, err := r.client.Write(s.data); err != nil {
			return // the client is gone; what it sent before still goes up
		}
	}
	_ = r.client.Close()
}

// next waits until the next segment of a direction may be delivered; false
// when there will be none.
func (r *relay) next(q *queue, w *way) (segment, bool) {
	s, ok := q.pop(r.done)
	if !ok {
		return s, false
	}
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-r.done:
			return s, false
		}
	}
	if wait := time.Until(s.due); !s.due.IsZero() && wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.done:
			return s, false
		}
	}
	return s, r.faults.pass(w, r.done)
}
