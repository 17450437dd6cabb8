package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// shortLease is that of the replicas of which one is stopped: the audience waits until it is over.
const shortLease = time.Second

// pause has two replicas sell the same unit. The first is stopped with the lock in its hand while it takes the
// payment; the second one's turn comes when the lease is over, and it sells; then the first goes on where it was.
func pause(ctx context.Context, st *stage, a act) (res *result, err error) {
	res = &result{act: a}
	if !canStop {
		res.summary = "No replica was paused: this system has no way to stop a process and let it go on."
		return res, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stamina)
	defer cancel()
	products := []string{"lamp"}
	books, closeBooks, err := st.books(ctx, a, products, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeBooks()) }()
	// They end before the books do.
	first, err := startProcess(ctx, st, role{Name: "replica-1", Tables: a.tables, Fenced: a.fenced, Lease: shortLease})
	if err != nil {
		return nil, err
	}
	defer first.kill()
	second, err := startProcess(ctx, st, role{Name: "replica-2", Tables: a.tables, Fenced: a.fenced, Lease: shortLease})
	if err != nil {
		return nil, err
	}
	defer second.kill()

	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(st.out, "   %4.1f s   %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	tally := newTally(st.name+":", products)
	answers := []answer{{order: "order-1", product: "lamp"}, {order: "order-2", product: "lamp"}}
	sendTo := func(p *process, a *answer) (answered chan struct{}) {
		answered = make(chan struct{})
		go func() {
			defer close(answered)
			buy(ctx, http.DefaultClient, p.url, a, tally)
		}()
		return answered
	}

	firstAnswered := sendTo(first, &answers[0])
	token, err := first.hear(ctx, "charging")
	if err != nil {
		return nil, err
	}
	if err := first.stop(); err != nil {
		return nil, err
	}
	say("replica-1 has the lock, token %s, and has read: 1 left. SIGSTOP, in the middle of the payment.", token)

	secondAnswered := sendTo(second, &answers[1])
	if token, err = second.hear(ctx, "charging"); err != nil {
		return nil, err
	}
	say("replica-2 has the lock, token %s: the lease of %v is over. It has read: 1 left.", token, shortLease)
	if err := second.confirm(); err != nil {
		return nil, err
	}
	<-secondAnswered
	say("replica-2 has sold the lamp.")

	if err := errors.Join(first.confirm(), first.goOn()); err != nil {
		return nil, err
	}
	say("replica-1 goes on (SIGCONT): the payment went through, so it sells the lamp.")
	select {
	case <-firstAnswered:
		say("Nothing stopped it.")
	case e := <-first.events:
		say("The database refuses. %s", e.text)
		<-firstAnswered
		say("Its request ended in a 503. The customer asked again, and the lamp was sold out.")
	}
	for _, a := range answers {
		if a.verdict == failed {
			return nil, errors.Join(fmt.Errorf("no answer to %s", a.order), a.err, ctx.Err())
		}
	}
	if err := errors.Join(first.end(), second.end(), first.ended(), second.ended()); err != nil {
		return nil, err
	}
	ledger, err := books.ledger(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the books: %w", err)
	}
	_, res.broken = audit(products, 1, answers, ledger)
	switch {
	case !a.fenced:
		res.summary = fmt.Sprintf("Without the fence the one lamp was sold %d times: "+
			"the lock had passed on, and the database did not know.", len(ledger.sales))
	case len(res.broken) > 0:
		res.summary = fmt.Sprintf("With the fence %d invariants broke.", len(res.broken))
	default:
		res.summary = "With the fence the lamp was sold once: the database had seen a larger token, and refused the replica that woke up."
	}
	return res, nil
}
