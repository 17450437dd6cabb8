// Package page runs the shop with each replica in a process of its own, and shows on a page who holds what. Buttons pause a
// replica, kill it, flush Redis, and take locks by hand.
package page

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// Config says what the page shows, and where it is.
type Config struct {
	Addr               string // the address of the page
	Replicas, Products int
}

// MostReplicas and MostProducts bound what one page shows and what one machine has to run.
const MostReplicas, MostProducts = 12, 8

// live sets how the replicas of the page work. Humans can follow the default times; tests use shorter ones.
type live struct {
	lease          time.Duration
	payment, think time.Duration // at least; at most three times as long
	comeBack       time.Duration // from the end of a replica to its next start
	look           time.Duration // between two looks at the servers
	soft           bool          // pause without SIGSTOP: see gate
}

func liveDefaults() live {
	return live{
		lease: 3 * time.Second, payment: 900 * time.Millisecond, think: 300 * time.Millisecond,
		comeBack: 2 * time.Second, look: 200 * time.Millisecond, soft: !shop.CanStop,
	}
}

const (
	// shelf is how many units of each product the shop has: enough for days, because nothing should be sold out here.
	shelf = 1_000_000
	// scene names the tables.
	scene = "live"
)

// Show runs the shop and its page until ctx ends. The processes that the program starts of itself must know the play [Play].
func Show(ctx context.Context, servers *shop.Servers, cfg Config, out, errOut io.Writer) error {
	return show(ctx, servers, cfg, liveDefaults(), out, errOut)
}

func show(ctx context.Context, servers *shop.Servers, cfg Config, l live, out, errOut io.Writer) (err error) {
	listener, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	defer listener.Close()

	products := shop.Catalogue(cfg.Products)
	books, closeBooks, err := servers.Books(ctx, scene, products, shelf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBooks()) }()

	f := newFleet(servers, l, cfg.Replicas, products, errOut)
	w, err := newWatch(servers, f.board, l.look, products, books)
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

	server := newServer(guarded(cfg.Addr, routes(f.board, f, w)))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(out, "\nWho holds what: http://%s/   (Ctrl-C ends it)\n", listener.Addr())
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		fmt.Fprintln(out, "Anyone who reaches this address can pause and kill the replicas: it is not a loopback address.")
	}

	select {
	case <-ctx.Done():
	case err = <-served:
		return fmt.Errorf("http: %w", err)
	}
	end()
	busy.Wait() // the pages still show how the replicas end
	f.board.close()
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), shop.Goodbye)
	defer cancel()
	if err := server.Shutdown(bye); err != nil {
		return errors.Join(fmt.Errorf("http: %w", err), server.Close())
	}
	return balance(bye, books, f.board, out)
}

// balance prints the result. With the fence no unit must have been sold twice, whatever was done to the replicas.
func balance(ctx context.Context, books *shop.Store, b *board, out io.Writer) error {
	counts, err := books.Counts(ctx)
	if err != nil {
		return fmt.Errorf("read the books: %w", err)
	}
	var sold int
	var broken []string
	for product, c := range counts {
		sold += c.Sold
		if c.Twice > 0 || c.Sold+c.Left != shelf {
			broken = append(broken, fmt.Sprintf("%s: %d sold, %d of them twice, and %d left of %d", product, c.Sold, c.Twice, c.Left, shelf))
		}
	}
	if len(broken) > 0 {
		return fmt.Errorf("something broke that must not:\n  %s", strings.Join(broken, "\n  "))
	}
	fmt.Fprintf(out, "\n%d units were sold, none of them twice. The database refused %d writes of replicas that had lost their lock.\n",
		sold, b.refused())
	return nil
}
