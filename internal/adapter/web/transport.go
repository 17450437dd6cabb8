package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// A Transport sends requests under the locks that they name, which it holds until their responses end.
type Transport struct {
	*Engine[*http.Request]
	Base http.RoundTripper
}

// RoundTrip is that of an http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := r.WithContext(r.Context()) // of its own, since a part may replace its body
	locks, err := t.named(sent)
	if err != nil {
		return nil, t.unsent(sent, err)
	}
	p := t.enter(sent, locks.Keys, locks.Options(t.Lock...))
	select {
	case ctx := <-p.in:
		return t.send(p, ctx, r, sent)
	case <-p.left:
	}
	err = p.outcome()
	if !t.open(r.Context(), err) {
		return nil, t.unsent(sent, err)
	}
	t.tell(r, unlocked, err)
	return t.Base.RoundTrip(sent)
}

// CloseIdleConnections is for http.Client, which asks for it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// unsent ends a request that is not sent. A RoundTripper always closes the body.
func (t *Transport) unsent(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	t.tell(r, refused, err)
	return err
}

// A place is the locks of one request. A goroutine has them, since the request ends in another call than it begins in. Nothing
// that it refers to refers to the response's body, so that a forgotten body is collected.
type place struct {
	in       chan context.Context // with the locks
	leave    func()
	left     chan struct{}
	err      error // these two are set before left is closed
	panicked any

	// forgotten is looked at from time to time. It is no channel, since one of a testing/synctest bubble must not be closed by
	// what runs when garbage is collected.
	forgotten atomic.Bool
}

const forgottenEvery = 10 * time.Second

func (t *Transport) enter(r *http.Request, keys []string, opts []holdfast.CallOption) *place {
	leave := make(chan struct{})
	p := &place{in: make(chan context.Context, 1), left: make(chan struct{}), leave: sync.OnceFunc(func() { close(leave) })}
	go func() {
		defer close(p.left)
		defer func() { p.panicked = recover() }() // in a hook
		use := func(ctx context.Context) error {
			p.in <- ctx
			p.stay(leave)
			if err := release(r.Context(), ctx); errors.Is(err, holdfast.ErrLost) {
				t.tell(r, lost, err)
			} else if err != nil {
				t.tell(r, unreleased, err)
			}
			return nil
		}
		// With a wait, a call that fails open would wait for a Redis that does not answer as long as for its turn.
		if t.FailOpen {
			p.err = t.Locker.DoAll(r.Context(), keys, use, append(opts[:len(opts):len(opts)], holdfast.WithWait(0))...)
		}
		if !t.FailOpen || errors.Is(p.err, holdfast.ErrNotAcquired) {
			p.err = t.Locker.DoAll(r.Context(), keys, use, opts...)
		}
	}()
	return p
}

func (p *place) stay(leave <-chan struct{}) {
	for !p.forgotten.Load() {
		select {
		case <-leave:
			return
		case <-time.After(forgottenEvery):
		}
	}
}

// outcome waits until the place has been left. A panic goes on in the caller of a method, as that of any hook.
func (p *place) outcome() error {
	<-p.left
	if p.panicked != nil {
		panic(p.panicked)
	}
	return p.err
}

// end gives the place back. It waits for the release, so that the next call of this caller does not find its own lock.
func (p *place) end() {
	p.leave()
	_ = p.outcome()
}

func (t *Transport) send(p *place, ctx context.Context, r, sent *http.Request) (resp *http.Response, err error) {
	lasts := false
	defer func() {
		if !lasts { // also after a panic
			p.end()
		}
	}()
	if resp, err = t.Base.RoundTrip(sent.WithContext(ctx)); err != nil {
		return nil, whyEnded(ctx, err)
	}
	resp.Request = r // whose context goes on
	if resp.Body == nil || resp.Body == http.NoBody {
		return resp, nil
	}
	lasts = true
	b := &body{ReadCloser: resp.Body, ctx: ctx, place: p}
	context.AfterFunc(ctx, p.leave) // what is left of the response cannot be read any more
	runtime.AddCleanup(b, func(forgotten *atomic.Bool) { forgotten.Store(true) }, &p.forgotten)
	if w, ok := resp.Body.(io.Writer); ok { // of 101 Switching Protocols
		resp.Body = duplex{b, w}
	} else {
		resp.Body = b
	}
	return resp, nil
}

// whyEnded adds to err that the locks of ctx were lost, if that is why ctx has ended.
func whyEnded(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, holdfast.ErrLost) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// body is that of a response. It gives the place back at its end.
type body struct {
	io.ReadCloser
	ctx   context.Context
	place *place
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	if err != io.EOF {
		err = whyEnded(b.ctx, err)
	}
	b.place.end()
	return n, err
}

func (b *body) Close() error {
	defer b.place.end()
	return b.ReadCloser.Close()
}

type duplex struct {
	*body
	io.Writer
}
