// Package web is the engine of the adapters for HTTP: what runs under the locks that a request names.
package web

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/adapter/wiring"
)

// releaseBound is how long the end of a response may wait for Redis to confirm the release.
const releaseBound = time.Second

// DefaultWait covers the time between the end of a long response, when its client can send the next request, and the
// release that follows it: a round trip to Redis.
const DefaultWait = 100 * time.Millisecond

// A Config is what the options of an adapter set, whose parts take values from an R.
type Config[R any] struct {
	Mistakes wiring.Mistakes
	Targets  []wiring.Target[R] // the constructor's, and those of WithAlso
	Share    *wiring.Share[R]   // nil without WithShare
	Wait     *time.Duration     // nil to leave it to Lock and the Locker
	Lease    bool               // RetryAfterLease
	Lock     []holdfast.CallOption
	Answer   func(http.ResponseWriter, R, error)
	Traces   []*Trace[R]
	FailOpen bool
}

// AddTrace adds t, and records a mistake if it is nil.
func (c *Config[R]) AddTrace(t *Trace[R]) {
	if c.Traces = append(c.Traces, t); t == nil {
		c.Mistakes.Refuse("WithTrace(nil)")
	}
}

// SetAnswer sets what answers in place of Respond, and records a mistake if that is none.
func (c *Config[R]) SetAnswer(none bool, answer func(http.ResponseWriter, R, error)) {
	if c.Answer = answer; none {
		c.Mistakes.Refuse("WithErrorHandler(nil)")
	}
}

// An Engine runs requests under their locks.
type Engine[R any] struct {
	Adapter  Adapter
	Locker   *holdfast.Locker
	Standard *Trace[R] // the hooks that apply if no Trace sets them
	Outwards bool      // of a Transport, which answers nobody
	Config[R]
}

// Configure applies opts and judges the outcome. It panics with all mistakes, as the constructor act.
func Configure[R, O any](e *Engine[R], act string, opts []O, apply func(O, *Config[R])) *Engine[R] {
	for i, o := range opts {
		if any(o) == nil {
			e.Mistakes.Refuse("option %d of %d is nil", i+1, len(opts))
			continue
		}
		apply(o, &e.Config)
	}
	if e.Wait != nil && *e.Wait < 0 {
		e.Mistakes.Refuse("WithBusy(Wait(%v)): negative", *e.Wait)
	}
	if e.Outwards && (e.Answer != nil || e.Lease) {
		e.Mistakes.Refuse("WithErrorHandler and RetryAfterLease are for a middleware")
	}
	wiring.Judge(&e.Mistakes, e.Locker, e.Targets, e.Lock, e.Share)
	if err := e.Mistakes.Err(string(e.Adapter) + ": " + act); err != nil {
		panic(err)
	}
	e.Lock = append(e.Lock, holdfast.WithReentrancy()) // a chain goes on under its locks
	if e.Wait != nil {
		e.Lock = append(e.Lock, holdfast.WithWait(*e.Wait))
	}
	return e
}

// A Call is one request on its way through a chain of handlers, as its framework has it.
type Call[R any] interface {
	From() R                  // what parts and hooks are given
	Context() context.Context // of the request as it came
	Writer() Writer

	// Ours is false once the framework has given From to another request, which must not see anything of this one. That
	// happens when a timeout middleware in front has returned.
	Ours() bool
	// Set gives the request another context.
	Set(ctx context.Context)
	// Next runs the rest of the chain.
	Next()
	// Back gives the request its earlier context again, unless it is not Ours, which it reports.
	Back() (ours bool)
	// Abort keeps the rest of the chain from running.
	Abort()
}

// A Writer knows what has been done with it.
type Writer interface {
	http.ResponseWriter
	Status() int // 200 until another one is set
	Written() bool
}

// Serve runs the rest of the chain under the locks that the request names, or answers in its place.
func (e *Engine[R]) Serve(c Call[R]) {
	locks, err := e.named(c.From())
	if err != nil {
		if c.Ours() {
			e.refuse(c, err)
		}
		return
	}
	ran := false
	err = e.Locker.DoAll(c.Context(), locks.Keys, func(ctx context.Context) error {
		if c.Ours() {
			ran = true
			e.hold(c, ctx)
		}
		return nil
	}, locks.Options(e.Lock...)...)
	switch {
	case ran, !c.Ours():
	case e.open(c.Context(), err):
		e.tell(c.From(), unlocked, err)
		c.Next()
	default:
		e.refuse(c, err)
	}
}

func (e *Engine[R]) named(from R) (wiring.Locks, error) {
	return wiring.Named(e.Targets, e.Share, from, e.Adapter.Unnamed)
}

// open reports whether what could not get its locks runs without them.
func (e *Engine[R]) open(ctx context.Context, err error) bool {
	return e.FailOpen && errors.Is(err, holdfast.ErrUnavailable) && ctx.Err() == nil
}

// hold runs the rest of the chain with ctx, the context of its locks, and then releases the locks, also if the chain
// panics.
func (e *Engine[R]) hold(c Call[R], ctx context.Context) {
	status, returned := c.Writer().Status(), false
	defer func() {
		err := release(c.Context(), ctx)
		if !c.Back() || err == nil {
			return
		}
		if !errors.Is(err, holdfast.ErrLost) {
			e.tell(c.From(), unreleased, err)
			return
		}
		e.tell(c.From(), lost, err)
		// After a panic the response belongs to the handler that recovers. Written is also true for a hijacked connection.
		if w := c.Writer(); returned && !w.Written() && w.Status() == status {
			e.answer(c, err)
		}
	}()
	c.Set(ctx)
	c.Next()
	returned = true
}

// release releases the locks of held at the same time, since each release is a round trip. DoAll, which would release them
// with the request's context, finds that done. The bound is its own, and detached from that context, which may have ended.
func release(request, held context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(request), releaseBound)
	defer cancel()
	locks := holdfast.Taken(held)
	var all sync.WaitGroup
	errs, panics := make([]error, len(locks)), make(chan any, len(locks))
	for i, lock := range locks {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil { // in a hook: passed on to the request's Recovery
					panics <- p
				}
			}()
			errs[i] = lock.Release(ctx)
		})
	}
	all.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
		return errors.Join(errs...)
	}
}

// refuse answers in place of the chain.
func (e *Engine[R]) refuse(c Call[R], err error) {
	c.Abort()
	e.tell(c.From(), refused, err)
	e.answer(c, err)
}

// answer leaves the response to the error handler, if there is one. A handler that does not respond, such as one that
// only logs, must not turn a refusal into an empty 200.
func (e *Engine[R]) answer(c Call[R], err error) {
	if e.Lease {
		err = &byLease{err}
	}
	w := c.Writer()
	if e.Answer != nil {
		status := w.Status()
		e.Answer(w, c.From(), err)
		if w.Status() != status {
			return
		}
	}
	Respond(c.Context(), w, err)
}
