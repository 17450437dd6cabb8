package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// report is a line that a replica of the page writes: what it saw, with times by its own clock.
type report struct {
	What    string // see reporter and board.report
	At      int64  // ms since 1970, like all times here
	Product string
	Token   int64  `json:",omitempty"`
	Until   int64  `json:",omitempty"` // end of the lease, as the replica knows it
	Elapsed int64  `json:",omitempty"` // ms
	Current int64  `json:",omitempty"` // the token that the database has seen
	Text    string `json:",omitempty"`
}

// reporter writes reports.
type reporter struct {
	gate   *gate
	names  map[string]string // of the products and the other locks, by lock key
	mu     sync.Mutex        // guards out
	out    io.Writer
	failed error
}

func (rp *reporter) say(r report) {
	rp.gate.thawed()
	r.At = time.Now().UnixMilli()
	if p, ok := rp.names[r.Product]; ok {
		r.Product = p
	}
	line, err := json.Marshal(r)
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if err == nil {
		_, err = fmt.Fprintf(rp.out, "report %s\n", line)
	}
	rp.failed = errors.Join(rp.failed, err)
}

// trace reports all that the page knows about the locks of a replica, except the end of a lease before its first renewal.
func (rp *reporter) trace() *holdfast.Trace {
	hook := func(what string) func(holdfast.Event) {
		return func(e holdfast.Event) {
			if rp.names[e.Key] == payments && what != "redis" {
				return // pay reports its place itself, with the product
			}
			r := report{What: what, Product: e.Key, Token: e.Token, Elapsed: e.Elapsed.Milliseconds()}
			if e.TimeLeft > 0 && what == "renewed" {
				r.Until = time.Now().Add(e.TimeLeft).UnixMilli()
			}
			if e.Err != nil {
				r.Text = e.Err.Error()
			}
			rp.say(r)
		}
	}
	return &holdfast.Trace{
		Waiting: hook("waiting"), Acquired: hook("acquired"), Renewed: hook("renewed"), NodeError: hook("redis"),
		Ended: func(e holdfast.Event) {
			what := "released"
			if errors.Is(e.Err, holdfast.ErrLost) {
				what = "lost"
			}
			hook(what)(e)
		},
	}
}

// outside runs around the lock, and reports that a request has ended, and its wait with it.
func (rp *reporter) outside(c *gin.Context) {
	c.Next()
	rp.say(report{What: "done", Product: c.Param("id"), Text: http.StatusText(c.Writer.Status())})
}

// inside runs under the lock. From Advance on, the database refuses the previous holder, whose write could otherwise come
// between the read and the write of this holder.
func (rp *reporter) inside(r *shop.Replica) gin.HandlerFunc {
	return func(c *gin.Context) {
		rp.gate.enter()
		defer rp.gate.leave()
		ctx, product := c.Request.Context(), c.Param("id")
		lock := holdfast.Held(ctx)[0]
		rp.say(report{What: "lease", Product: product, Token: lock.Token(), Until: lock.Deadline().UnixMilli()})
		if err := r.Books.Advance(ctx); err != nil {
			_ = c.Error(err)
			c.Header("Retry-After", "0")
			c.AbortWithStatusJSON(http.StatusServiceUnavailable, gin.H{"error": err.Error()})
		} else {
			c.Next()
		}
		for _, e := range c.Errors {
			if stale := (*sqlfence.StaleError)(nil); errors.As(e.Err, &stale) {
				rp.say(report{What: "refused", Product: product, Token: stale.Token, Current: stale.Current})
			}
		}
		if c.Writer.Status() == http.StatusOK {
			rp.say(report{What: "sold", Product: product, Token: lock.Token()})
		}
	}
}

const (
	payments = "payments" // the key of the places at the payment provider
	atOnce   = 2          // how many places all replicas share
)

// pay runs a payment in one of the places. The payments of a product are a share: a rush for one does not keep the others out.
// The wait for a place is not work to the gate: it can last until payments of this
// same replica end, and a pause holds those up.
func (rp *reporter) pay(ctx context.Context, locker *holdfast.Locker, product string, payment func() error) (err error) {
	token := holdfast.Held(ctx)[0].Token()
	say := func(what string) { rp.say(report{What: what, Product: product, Token: token}) }
	rp.gate.leave()
	place, err := locker.Acquire(ctx, payments, holdfast.WithLimit(atOnce), holdfast.WithShare(product), holdfast.WithTrace(&holdfast.Trace{
		Waiting: func(holdfast.Event) { say("queued") },
		Ended: func(e holdfast.Event) {
			if errors.Is(e.Err, holdfast.ErrLost) {
				rp.say(report{What: "displaced", Product: product, Elapsed: e.Elapsed.Milliseconds()})
			}
		},
	}))
	rp.gate.enter()
	if err != nil {
		return err
	}
	// What is paid is paid: the sale goes on even if the place was lost.
	defer func() { _ = place.Release(context.WithoutCancel(ctx)) }()
	if err := holdfast.Err(place.Context(ctx)); err != nil {
		return err // the replica was paused before the payment began
	}
	say("pays")
	rp.gate.pay(func() { err = payment() })
	say("paid")
	return err
}

// Play is the name of the play in which a process is a replica of the page.
const Play = "page"

// Replica runs a replica of the page. Each line of its input pauses it, lets it go on, or begins or ends an act.
func Replica(in *bufio.Scanner, out io.Writer, s *shop.Servers, r shop.Role) error {
	g := newGate()
	if r.Soft {
		g.dial(s.Redis)
	}
	rp := &reporter{gate: g, out: out, names: map[string]string{}}
	for _, p := range r.Products {
		rp.names[r.Prefix+":"+holdfast.Key("product", p)] = p
	}
	for _, key := range append([]string{payments}, handKeys...) {
		rp.names[r.Prefix+":"+key] = key
	}
	closing := make(chan struct{})
	var locker *holdfast.Locker // set by Inside, before the first request
	replica, err := s.StartReplica(context.Background(), shop.Plan{
		Name:    r.Name,
		Scene:   r.Scene,
		Locked:  true,
		Fenced:  r.Fenced,
		Deaf:    true,
		Lock:    []holdfast.Option{holdfast.WithTTL(r.Lease), holdfast.WithTrace(rp.trace())},
		Outside: []gin.HandlerFunc{rp.outside},
		Inside:  func(r *shop.Replica) gin.HandlerFunc { locker = r.Locker; return rp.inside(r) },
		Charge: func(ctx context.Context, product string) error {
			return rp.pay(ctx, locker, product, func() error { return atWork(r.Payment, closing) }) // ignores ctx, like the write after it
		},
	})
	if err != nil {
		return err
	}
	rp.mu.Lock()
	_, err = fmt.Fprintln(out, "listening", replica.URL)
	rp.mu.Unlock()
	ctx, over := context.WithCancel(context.Background())
	h := &hands{reporter: rp, locker: replica.Locker, ends: map[string]context.CancelFunc{}}
	h.running.Go(func() { h.lead(ctx) })
	var pauses sync.WaitGroup
	for in.Scan() {
		switch order, act, _ := strings.Cut(strings.TrimSpace(in.Text()), " "); order {
		case "begin":
			h.begin(ctx, act)
		case "end":
			h.end(act)
		case "pause":
			pauses.Go(func() {
				g.close()
				rp.say(report{What: "ready"})
				if r.Soft {
					g.freeze()
				}
			})
		case "resume":
			g.open()
		}
	}
	close(closing)
	g.open()
	over()
	h.running.Wait()
	err = errors.Join(err, replica.Stop(context.Background()))
	g.open() // for a pause that was ordered just before
	pauses.Wait()
	return errors.Join(err, rp.failed)
}

var errClosing = errors.New("the shop is closing")

// atWork lasts at least d, and at most three times that.
func atWork(d time.Duration, closing <-chan struct{}) error {
	timer := time.NewTimer(d + rand.N(2*d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-closing:
		return errClosing
	}
}
