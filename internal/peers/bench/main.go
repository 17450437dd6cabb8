// Command bench measures what holdfast costs beside the floor, the two commands that any lock on one Redis has to send, and
// beside other Go libraries: without contention, where many want the same key, on a majority of five servers, also while some
// of them are late or hang, with thousands of locks held, where several may hold one lock together, or tenants share it, and
// where asynq's tasks want one key. It starts redis-servers of its own (HOLDFAST_REDIS_SERVER names another program) and prints
// tables in Markdown.
//
//	go run . -rounds 7 -duration 1s
//	go run . -parts contended
//	go run . -parts goroutines,processes -sizes 16 -only holdfast,redsync -rounds 9
//	go run . -parts tasks -duration 10s
//	go run . -parts all -json results/results.json -md results/results.md -charts results
//	go run . -from results/results.json -md results/results.md -charts results
//
// All take turns on one machine: what the machine does beside that meets all of them alike. Compare the figures of one run
// with each other and not with those of another run.
//
// Of the other libraries, one whose module cannot be downloaded is left out, and named, with its build tag:
// without_redislock, without_redsync or without_rueidis; and with without_asynq the part tasks.
//
// The benchmarks of this package measure the uncontended cycle too, for benchstat and for profiles.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	if err := start(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// children are what this program does as a process of another of it, by the first argument.
var children = map[string]func(args []string, in io.Reader, out io.Writer) error{
	workerFlag: work, relayFlag: pass, loaderFlag: carry,
}

func isChild(args []string) bool { return len(args) > 0 && children[args[0]] != nil }

func start(args []string) error {
	if isChild(args) {
		return children[args[0]](args[1:], os.Stdin, os.Stdout)
	}
	plan, err := parsePlan(flag.CommandLine, args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return run(ctx, os.Stdout, plan)
}

// run measures, or reads what was measured, and writes all that was asked for.
func run(ctx context.Context, w io.Writer, p plan) error {
	if p.from == "" {
		return p.report(ctx, w)
	}
	r, err := read(p.from)
	if err != nil {
		return err
	}
	r.Targets = judgeTargets(r)
	if err := r.markdown(w); err != nil {
		return err
	}
	return p.keep(r)
}

// keep writes the files that were asked for.
func (p plan) keep(r report) error {
	if p.md != "" {
		var b bytes.Buffer
		_ = r.markdown(&b) // a buffer takes all
		if err := write(p.md, b.Bytes()); err != nil {
			return err
		}
	}
	if p.json != "" {
		if err := r.save(p.json); err != nil {
			return err
		}
	}
	if p.charts != "" {
		return r.draw(p.charts)
	}
	return nil
}

// report measures, and writes each table as soon as it is there: what comes later may fail.
func (p plan) report(ctx context.Context, w io.Writer) error {
	s, err := startServer()
	if err != nil {
		return err
	}
	var r report
	r.Environment, err = p.environment(ctx, s)
	s.Close()
	if err != nil {
		return err
	}
	if err := r.introduce(w); err != nil {
		return err
	}
	if err := p.keep(r); err != nil {
		return err
	}
	err = p.run(ctx, func(t table) error {
		r.Tables = append(r.Tables, t)
		r.Targets = judgeTargets(r)
		if err := t.markdown(w); err != nil {
			return err
		}
		return p.keep(r)
	})
	if err != nil {
		return err
	}
	return r.conclude(w)
}
