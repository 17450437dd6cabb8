// Command bench measures what holdfast costs beside the floor: the two commands that any lock on one Redis
// has to send, through the same go-redis client. With -parts contended it measures holdfast beside other Go
// libraries where many want the same key, and with -parts redlock locks on a majority of five servers beside redsync,
// also while some of them are late or hang. It starts redis-servers of its own (HOLDFAST_REDIS_SERVER names another
// program) and prints tables in Markdown.
//
//	go run . -rounds 7 -duration 1s
//	go run . -parts contended
//	go run . -parts goroutines,processes -sizes 16 -only holdfast,redsync -rounds 9
//
// All take turns on one machine against one server: what the machine does beside that meets all of them alike.
// Compare the figures of one run with each other and not with those of another run.
//
// The benchmarks of this package measure the uncontended cycle too, for benchstat and for profiles.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
	if err := start(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func start(args []string) error {
	if len(args) > 0 && args[0] == workerFlag {
		return work(args[1:], os.Stdin, os.Stdout)
	}
	plan, err := parsePlan(flag.CommandLine, args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return run(ctx, os.Stdout, plan)
}

func run(ctx context.Context, w io.Writer, p plan) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	t := newTarget(s.addr, p.pool)
	defer t.close()

	if p.has(uncontended) {
		if err := p.filled(5, time.Second).cycles(ctx, w, t); err != nil {
			return err
		}
	}
	if err := p.filled(3, 400*time.Millisecond).contest(ctx, w, t); err != nil {
		return err
	}
	if p.has(several) {
		return p.filled(5, 400*time.Millisecond).redlock(ctx, w, t)
	}
	return nil
}

// cycles writes the uncontended table.
func (p plan) cycles(ctx context.Context, w io.Writer, t *target) error {
	about, err := describe(ctx, t, p)
	if err != nil {
		return err
	}
	rows, err := p.run(ctx, t, contenders)
	if err != nil {
		return err
	}
	return writeReport(w, about, rows)
}
