// Command bench measures what holdfast costs beside the floor: the two commands that any lock on one Redis
// has to send, through the same go-redis client. It starts a redis-server of its own (HOLDFAST_REDIS_SERVER
// names another program) and prints a table in Markdown.
//
//	go run . -rounds 7 -duration 1s
//
// All contenders run in one process against one server, in turns: what the machine does beside that meets all
// of them alike. Compare the columns of one run with each other and not with those of another run. Every
// goroutine has a key of its own, so nobody waits for a lock.
//
// The benchmarks of this package measure the same, for benchstat and for profiles.
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
	var plan plan
	flag.IntVar(&plan.rounds, "rounds", 5, "how often each contender is measured; the table has the medians")
	flag.DurationVar(&plan.duration, "duration", time.Second, "how long one measurement takes")
	flag.IntVar(&plan.pool, "pool", 64, "connections of the go-redis client; 0 for its default")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, plan); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, plan plan) error {
	if err := plan.check(); err != nil {
		return err
	}
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	t := newTarget(s.addr, plan.pool)
	defer t.close()

	about, err := describe(ctx, t, plan)
	if err != nil {
		return err
	}
	rows, err := plan.run(ctx, t, contenders)
	if err != nil {
		return err
	}
	return writeReport(w, about, rows)
}
