package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
	"github.com/holdfast-go/holdfast/sqlfence"
)

const (
	pausable = "pausable" // the play of both replicas
	paid     = "paid"     // what a replica is told when its payment has gone through
)

// pause makes two replicas sell the same unit. The first is stopped while it holds the lock and takes the payment. The
// second gets the lock when the lease has expired, and sells. Then the first goes on where it was.
func pause(ctx context.Context, st *stage, a act) (res *result, err error) {
	res = &result{act: a}
	if !shop.CanStop {
		res.summary = "No replica was paused: this system has no way to stop a process and let it go on."
		return res, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stamina)
	defer cancel()
	products := []string{"lamp"}
	books, closeBooks, err := st.Books(ctx, a.tables, products, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBooks()) }()
	// The deferred calls end the replicas before the books are closed.
	first, err := st.StartProcess(ctx, shop.Role{Play: pausable, Name: "replica-1", Scene: a.tables, Fenced: a.fenced, Lease: st.size.lease}, st.errOut)
	if err != nil {
		return nil, err
	}
	defer first.Close()
	second, err := st.StartProcess(ctx, shop.Role{Play: pausable, Name: "replica-2", Scene: a.tables, Fenced: a.fenced, Lease: st.size.lease}, st.errOut)
	if err != nil {
		return nil, err
	}
	defer second.Close()

	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(st.out, "   %4.1f s   %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	tally := newTally(st.Prefix+":", products)
	answers := []shop.Answer{{Order: "order-1", Product: "lamp"}, {Order: "order-2", Product: "lamp"}}
	sendTo := func(p *shop.Process, a *shop.Answer) (answered chan struct{}) {
		answered = make(chan struct{})
		go func() {
			defer close(answered)
			buy(ctx, http.DefaultClient, p.URL, a, tally)
		}()
		return answered
	}

	firstAnswered := sendTo(first, &answers[0])
	token, err := first.Hear(ctx, "charging")
	if err != nil {
		return nil, err
	}
	if err := first.Stop(); err != nil {
		return nil, err
	}
	say("replica-1 has the lock, token %s, and has read: 1 left. SIGSTOP, in the middle of the payment.", token)

	secondAnswered := sendTo(second, &answers[1])
	if token, err = second.Hear(ctx, "charging"); err != nil {
		return nil, err
	}
	say("replica-2 has the lock, token %s: the lease of %v has expired. It has read: 1 left.", token, st.size.lease)
	if err := second.Tell(paid); err != nil {
		return nil, err
	}
	<-secondAnswered
	say("replica-2 has sold the lamp.")

	if err := errors.Join(first.Tell(paid), first.GoOn()); err != nil {
		return nil, err
	}
	say("replica-1 goes on (SIGCONT): the payment went through, so it sells the lamp.")
	select {
	case <-firstAnswered:
		say("Nothing stopped it.")
	case e := <-first.Events:
		say("The database refuses. %s", e.Text)
		<-firstAnswered
		say("Its request ended in a 503. The customer asked again, and the lamp was sold out.")
	}
	for _, a := range answers {
		if a.Verdict == shop.Failed {
			return nil, errors.Join(fmt.Errorf("no answer to %s", a.Order), a.Err, ctx.Err())
		}
	}
	if err := errors.Join(first.End(), second.End(), first.Ended(), second.Ended()); err != nil {
		return nil, err
	}
	ledger, err := books.Ledger(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the books: %w", err)
	}
	_, res.broken = audit(products, 1, answers, ledger)
	switch {
	case !a.fenced:
		res.summary = fmt.Sprintf("Without the fence the one lamp was sold %d times: "+
			"the lock had passed on, and the database did not know.", len(ledger.Sales))
	case len(res.broken) > 0:
		res.summary = fmt.Sprintf("With the fence %d invariants broke.", len(res.broken))
	default:
		res.summary = "With the fence the lamp was sold once: the database had seen a larger token, and refused the replica that woke up."
	}
	return res, nil
}

// playPausable is a replica whose payments last until it is told that they went through. It reports the token with which it
// charges a customer, and what the database refused.
func playPausable(in *bufio.Scanner, out io.Writer, s *shop.Servers, r shop.Role) error {
	confirmed := make(chan struct{})
	replica, err := s.StartReplica(context.Background(), shop.Plan{
		Name:   r.Name,
		Scene:  r.Scene,
		Locked: true,
		Fenced: r.Fenced,
		Deaf:   true,
		Lock:   []holdfast.Option{holdfast.WithTTL(r.Lease)},
		Charge: func(ctx context.Context, _ string) error {
			fmt.Fprintln(out, "charging", holdfast.Held(ctx)[0].Token())
			<-confirmed
			return nil
		},
		Outside: []gin.HandlerFunc{func(c *gin.Context) {
			c.Next()
			for _, e := range c.Errors {
				if errors.Is(e, sqlfence.ErrStale) {
					fmt.Fprintln(out, "refused", e)
				}
			}
		}},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "listening", replica.URL)
	for in.Scan() {
		confirmed <- struct{}{}
	}
	close(confirmed)
	return replica.Stop(context.Background())
}
