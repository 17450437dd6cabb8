// Soak runs what looks for violations with random choices in turns, each for a short while and with a fresh seed, until
// the time is over or something is found: the simulations of one server and of five, storms in virtual time and on real
// servers, the scripts of claims and of the fence, the model of the scripts, the histories of the fence, and those of
// locks and claims, the traces that the scripts write of some of these, and the adapters of asynq and cron under fire.
//
//	go run ./soak -duration 1h
//
// It prints a line for each turn. At the first violation it stops, and tells the seed and how to repeat it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	duration := flag.Duration("duration", 10*time.Minute, "how long it goes on, about")
	seed := flag.String("seed", "", "where the seeds come from; random by default")
	flags := flag.String("flags", "", "for go test, when it builds the parts: -race, say")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := soak(ctx, *duration, *seed, strings.Fields(*flags)); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

// How long a part has its turn: long enough for the servers that it starts to be worth it.
const (
	shortest = 20 * time.Second
	longest  = time.Minute
)

func soak(ctx context.Context, duration time.Duration, seed string, flags []string) error {
	began := time.Now()
	first := rand.Uint64N(1 << 40)
	if seed != "" {
		if _, err := fmt.Sscan(seed, &first); err != nil {
			return fmt.Errorf("seed %q: %w", seed, err)
		}
	}
	seeds := rand.New(rand.NewPCG(first, 5))
	dir, err := os.MkdirTemp("", "holdfast-soak-")
	if err != nil {
		return err
	}
	fmt.Printf("%v from SEED=%d; builds the parts in %s\n", duration, first, dir)
	var parts []*part
	for _, p := range all() {
		why, err := p.missing(ctx)
		if err != nil {
			return err
		}
		if why != "" {
			fmt.Printf("NOT RUN: %s: %s\n", p.name, why)
			continue
		}
		parts = append(parts, p)
	}
	for _, p := range parts {
		if err := p.build(ctx, dir, flags); err != nil {
			return err
		}
	}
	turn := min(max(duration/time.Duration(2*len(parts)), shortest), longest)
	for n := 0; ; n++ {
		left := duration - time.Since(began)
		if left < shortest/2 && n > 0 {
			break
		}
		p := parts[n%len(parts)]
		slice := seeds.Uint64N(1 << 40)
		if n == 0 {
			slice = first
		}
		fmt.Printf("%s %v of %v, %s SEED=%d; so far %s\n", time.Now().Format(time.TimeOnly), time.Since(began).Round(time.Second), duration, p.name, slice, sums(parts))
		log := filepath.Join(dir, fmt.Sprintf("%04d-%s.log", n, p.name))
		err := p.run(ctx, slice, min(turn, max(left, shortest/2)), log)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			return failure(p, slice, turn, log, err)
		}
		_ = os.Remove(log)
	}
	fmt.Printf("no violation in %v: %s\n", time.Since(began).Round(time.Second), sums(parts))
	return os.RemoveAll(dir)
}

// failure prints the end of what a part had to say, and how to have it say that again.
func failure(p *part, seed uint64, turn time.Duration, log string, err error) error {
	text, _ := os.ReadFile(log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	fmt.Println(strings.Join(lines[max(0, len(lines)-250):], "\n"))
	fmt.Printf("All it said is in %s. Where it names no seed of its own, repeat it with\n\tcd %s && GOWORK=off HOLDFAST_SOAK=1 DURATION=%v SEED=%d go test -tags '%s' -count=1 -timeout 0 -v -run '%s' .\n",
		log, p.dir, turn, seed, p.tags, p.tests)
	return fmt.Errorf("%s: %w", p.name, err)
}
