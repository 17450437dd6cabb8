package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// live says how the replicas of the page work. People can follow these times; tests take shorter ones.
type live struct {
	lease          time.Duration
	payment, think time.Duration // at least; at most three times as long
	comeBack       time.Duration // from the end of a replica to its next start
	soft           bool          // pause without SIGSTOP: see gate
}

func liveDefaults() live {
	return live{
		lease: 3 * time.Second, payment: 900 * time.Millisecond, think: 300 * time.Millisecond,
		comeBack: 2 * time.Second, soft: !canStop,
	}
}

// shelf is what the shop has of each product, enough for days: here nothing is to be sold out.
const shelf = 1_000_000

// mostReplicas and mostProducts bound what one page shows, and what one machine has to run.
const mostReplicas, mostProducts = 12, 8

// show runs the shop on a page until ctx ends.
func (a *app) show(ctx context.Context, st *stage, l live) (err error) {
	listener, err := net.Listen("tcp", st.cfg.addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	defer listener.Close()

	products := catalogue(st.cfg.products)
	books, closeBooks, err := st.books(ctx, act{tables: "live"}, products, shelf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBooks()) }()

	f := newFleet(st, l, products)
	w, err := newWatch(st, f.board, products, books)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	playing, end := context.WithCancel(ctx)
	var busy sync.WaitGroup
	defer busy.Wait()
	defer end()
	busy.Go(func() { w.run(playing) })
	busy.Go(func() { f.run(playing) })

	server := &http.Server{
		Handler:           guarded(st.cfg.addr, routes(f.board, f, w)),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    1 << 14,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(a.stdout, "\nWho holds what: http://%s/   (Ctrl-C ends it)\n", listener.Addr())
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		fmt.Fprintln(a.stdout, "Whoever reaches this address can pause and kill the replicas: it is not a loopback address.")
	}

	select {
	case <-ctx.Done():
	case err = <-served:
		return fmt.Errorf("http: %w", err)
	}
	end()
	busy.Wait() // the pages show the replicas end
	f.board.close()
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	if err := server.Shutdown(bye); err != nil {
		return errors.Join(fmt.Errorf("http: %w", err), server.Close())
	}
	return a.balance(bye, books, f.board)
}

// balance says what came of it. With the fence no unit may have been sold twice, whatever was done to the replicas.
func (a *app) balance(ctx context.Context, books *store, b *board) error {
	counts, err := books.counts(ctx)
	if err != nil {
		return fmt.Errorf("read the books: %w", err)
	}
	var sold int
	var broken []string
	for product, c := range counts {
		sold += c.sold
		if c.twice > 0 || c.sold+c.left != shelf {
			broken = append(broken, fmt.Sprintf("%s: %d sold, %d of them twice, and %d left of %d", product, c.sold, c.twice, c.left, shelf))
		}
	}
	if len(broken) > 0 {
		return fmt.Errorf("something broke that must not:\n  %s", strings.Join(broken, "\n  "))
	}
	fmt.Fprintf(a.stdout, "\n%d units were sold, none of them twice. The database refused %d writes of replicas that had lost their lock.\n",
		sold, b.refused())
	return nil
}
