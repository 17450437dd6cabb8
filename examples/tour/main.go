// Tour shows what goes wrong on several replicas, and what prevents it, in four scenes:
//
//   - rush: a small shop on three replicas, with many customers and too little stock. It runs without the lock and with it.
//   - paused: two processes that hold the lock. The first is stopped (SIGSTOP) until its lease has expired, and goes on when the
//     second has sold the only unit. It runs without a fence in the database and with it.
//   - workers: two asynq servers that pay out from a few accounts, without the lock and with it, and three schedulers that
//     enqueue each tick once. It is the only scene that needs asynq.
//   - cron: five replicas that have the same job. One of them runs each tick.
//
// From the root of the repository:
//
//	go run ./examples/tour
//	go run ./examples/tour -scene paused
//	go run ./examples/tour -scene rush,cron
//	go run ./examples/tour -requests 1000 -products 8 -stock 30 -replicas 5
//	go run ./examples/tour -serve
//
// With -serve the tour plays no scenes. It runs the shop until Ctrl-C, with each replica in a process of its own, and prints
// the address of a page that shows who holds what. Buttons pause a replica, kill it, and flush Redis. Others take locks by
// hand: with a limit (WithLimit), as readers and a writer (WithShared), as a leader (Lead), and several at once (DoAll).
//
// The tour needs only Go: Redis and the database are embedded (miniredis and SQLite, gone afterwards). Two environment
// variables switch to real servers:
//
//	REDIS_ADDR    host:port, or a redis:// URL
//	DATABASE_URL  postgres://..., mysql://... (also MariaDB), or sqlite:///path/to/file
//
// In a database of yours the tour makes a few tables per scene, named holdfast_tour_ and a random number. It drops them at
// the end, also after Ctrl-C. After a kill -9 they stay, and so does a replica that was stopped. Keys in Redis have a prefix
// made the same way and expire on their own.
//
// The exit status is 1 if anything was sold twice or another invariant broke with the lock or the fence, or if a server
// could not be reached. It is 2 for wrong flags, and 130 after Ctrl-C, except that -serve then ends with 0.
//
// The scenes are in this directory, the shop in which they play is in internal/shop, and the page in internal/page.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-go/holdfast/examples/tour/internal/page"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

func main() {
	if os.Getenv(shop.ProcessEnv) != "" {
		os.Exit(shop.Child(plays))
	}
	gin.SetMode(gin.ReleaseMode)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C does not wait for the clean-up
	a := &app{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, scenes: scenes, size: full}
	os.Exit(a.run(ctx, os.Args[1:]))
}

// plays are the roles that a process for one replica can have.
var plays = map[string]shop.Play{pausable: playPausable, page.Play: page.Replica}

// app is the program with its dependencies on the outside.
type app struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	scenes         []scene
	size           size
}

// size sets how long those scenes last that have no flags for it.
type size struct {
	lease   time.Duration // of the scene paused: the audience waits until it has expired
	payouts int           // of each account
	ticks   int           // of the schedulers
	jobs    int           // of the cron job
}

var full = size{lease: time.Second, payouts: 25, ticks: 10, jobs: 5}

type config struct {
	requests, products, stock, replicas int
	scenes                              []scene
	serve                               bool
	addr                                string
}

// run returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	cfg, err := a.parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // the reason has been printed
	}
	err = a.play(ctx, cfg)
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(a.stderr, "tour: interrupted: %v\n", err)
		return 130
	case err != nil:
		fmt.Fprintln(a.stderr, "tour:", err)
		return 1
	}
	return 0
}

func (a *app) parse(args []string) (config, error) {
	cfg := config{}
	fs := flag.NewFlagSet("tour", flag.ContinueOnError)
	fs.SetOutput(a.stderr)
	fs.IntVar(&cfg.requests, "requests", 300, "purchases, all at once up to 300")
	fs.IntVar(&cfg.products, "products", 4, "different products")
	fs.IntVar(&cfg.stock, "stock", 20, "units of each product")
	fs.IntVar(&cfg.replicas, "replicas", 3, "replicas of the shop")
	only := fs.String("scene", "", "the scenes to play, separated by commas: "+names(a.scenes)+"; all of them without it")
	fs.BoolVar(&cfg.serve, "serve", false, "show on a page who holds what, until Ctrl-C")
	fs.StringVar(&cfg.addr, "addr", "127.0.0.1:0", "with -serve: where the page is")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var err error
	cfg.scenes, err = choose(a.scenes, *only)
	switch {
	case err != nil:
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case cfg.requests < 1 || cfg.products < 1 || cfg.stock < 1 || cfg.replicas < 1:
		err = errors.New("every number must be at least 1")
	case given["addr"] && !cfg.serve:
		err = errors.New("-addr is for -serve")
	case cfg.serve && (given["requests"] || given["stock"] || *only != ""):
		err = errors.New("-requests, -stock and -scene are for the scenes, and -serve plays none")
	case cfg.serve && (cfg.replicas > page.MostReplicas || cfg.products > page.MostProducts):
		err = fmt.Errorf("the page has room for %d replicas and %d products", page.MostReplicas, page.MostProducts)
	}
	if err != nil {
		fmt.Fprintln(a.stderr, "tour:", err)
	}
	return cfg, err
}

// choose returns the scenes that list names, separated by commas, in the order of scenes. An empty list means all.
func choose(scenes []scene, list string) ([]scene, error) {
	if list == "" {
		return scenes, nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(scenes, func(sc scene) bool { return sc.name == name }) {
			return nil, fmt.Errorf("no scene is called %q: they are %s", name, names(scenes))
		}
	}
	var chosen []scene
	for _, sc := range scenes {
		if slices.Contains(wanted, sc.name) {
			chosen = append(chosen, sc)
		}
	}
	return chosen, nil
}

func names(scenes []scene) string {
	var all []string
	for _, sc := range scenes {
		all = append(all, sc.name)
	}
	return strings.Join(all, ", ")
}

// play goes through the scenes and judges them.
func (a *app) play(ctx context.Context, cfg config) (err error) {
	servers, err := shop.OpenServers(ctx, a.getenv("REDIS_ADDR"), a.getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	fmt.Fprintf(a.stdout, "Redis: %s. Database: %s.\n", servers.RedisName, servers.Database.Name)
	if cfg.serve {
		shown := page.Config{Addr: cfg.addr, Replicas: cfg.replicas, Products: cfg.products}
		return page.Show(ctx, servers, shown, a.stdout, a.stderr)
	}
	st := &stage{Servers: servers, cfg: cfg, size: a.size, progress: newProgress(a.stdout), out: a.stdout, errOut: a.stderr}
	var broken []string
	for i, sc := range cfg.scenes {
		fmt.Fprintf(a.stdout, "\n%d. %s\n", i+1, sc.title)
		var results []*result
		for _, act := range sc.acts {
			fmt.Fprintf(a.stdout, "\n%s\n", act.intro)
			res, err := act.play(ctx, st, act)
			if err != nil {
				return fmt.Errorf("%s: %w", act.name, err)
			}
			results = append(results, res)
			if act.mustHold {
				broken = append(broken, res.broken...)
			}
		}
		fmt.Fprintln(a.stdout)
		if err := printTable(a.stdout, results); err != nil {
			return err
		}
		for _, res := range results {
			fmt.Fprintln(a.stdout, res.summary)
		}
	}
	if len(broken) > 0 {
		return fmt.Errorf("something broke that must not:\n  %s", strings.Join(broken, "\n  "))
	}
	return nil
}
