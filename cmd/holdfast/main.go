// Holdfast shows the locks on a live Redis: the holder or holders of each, the fencing token, since when it is held, how
// long the lease lasts, and the waiters. It only reads.
//
//	holdfast ls [pattern]      a table of all locks, or of those whose key matches a Redis pattern (* ? [a-z])
//	holdfast show KEY          all that is known about one key
//	holdfast watch [pattern]   the table, redrawn every second (-n), as wide as the terminal
//
//	go install github.com/holdfast-go/holdfast/cmd/holdfast@latest
//	REDIS_URL=redis://:secret@10.0.0.5:6379/0 holdfast ls 'order:*'
//
// README.md in the same folder covers Sentinel, Cluster, keys that ls cannot see, and what an ACL must allow.
//
// The exit status is 0 on success, 1 if Redis or a part of it could not be asked, 2 for a wrong command line, 3 if show
// finds nothing, and 130 after Ctrl-C, except that watch then ends with 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	statusFailed  = 1
	statusUsage   = 2
	statusNothing = 3
	statusStopped = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the program at once
	redis.SetLogger(quiet{})
	a := &app{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, connect: connect}
	info, err := os.Stdout.Stat()
	a.terminal, a.size = err == nil && info.Mode()&os.ModeCharDevice != 0, windowSize
	os.Exit(a.run(ctx, os.Args[1:]))
}

// quiet keeps go-redis from writing errors into the table. They are also returned.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// app is the program with its dependencies on the outside.
type app struct {
	stdout, stderr io.Writer
	terminal       bool                       // stdout is a terminal
	size           func() (columns, rows int) // of the terminal; 0 if not known
	getenv         func(string) string
	connect        func(url string, cluster bool) (redis.UniversalClient, error)
}

// settings are the values of the flags.
type settings struct {
	url     string
	cluster bool
	all     bool
	json    bool
	quoted  bool
	every   time.Duration
}

const usage = `usage:
  holdfast ls    [flags] [pattern]   all locks, or those whose key matches
  holdfast show  [flags] KEY         all that is known about one key
  holdfast watch [flags] [pattern]   like ls, redrawn every second

"holdfast ls -h" lists the flags, which go before the pattern or key.
`

// errUsage stands for a wrong command line that has already been reported.
var errUsage = errors.New("wrong command line")

func (a *app) run(ctx context.Context, args []string) int {
	err := a.command(ctx, args)
	var failed *partial
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return statusUsage
	case ctx.Err() != nil:
		return statusStopped
	case errors.Is(err, errNothing):
		fmt.Fprintln(a.stderr, "holdfast:", err)
		return statusNothing
	case errors.As(err, &failed):
		for _, one := range failed.errs {
			fmt.Fprintln(a.stderr, "holdfast:", explain(one))
		}
		return statusFailed
	}
	fmt.Fprintln(a.stderr, "holdfast:", explain(err))
	return statusFailed
}

func (a *app) command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(a.stderr, usage)
		return errUsage
	}
	name, args := args[0], args[1:]
	var s settings
	flags := flag.NewFlagSet("holdfast "+name, flag.ContinueOnError)
	flags.SetOutput(a.stderr)
	flags.StringVar(&s.url, "redis", "", "`URL` or host:port of Redis; a URL in REDIS_URL does not show in ps (default REDIS_URL, or "+defaultURL+")")
	flags.BoolVar(&s.cluster, "cluster", false, "it is a Redis Cluster: look at every master")
	many := func() {
		flags.BoolVar(&s.all, "all", false, "look at every string key, even if no key of holdfast's goes with it: slow")
	}
	var act func(context.Context, redis.UniversalClient, settings, string) error
	switch name {
	case "ls":
		many()
		flags.BoolVar(&s.json, "json", false, "print JSON")
		act = a.list
	case "watch":
		many()
		flags.DurationVar(&s.every, "n", time.Second, "the `pause` between two scans of Redis, at least 100ms")
		act = a.watch
	case "show":
		flags.BoolVar(&s.json, "json", false, "print JSON")
		flags.BoolVar(&s.quoted, "quoted", false, `KEY is quoted in Go syntax, as ls prints unusual keys: "a\x00b"`)
		act = a.show
	case "help", "-h", "-help", "--help":
		fmt.Fprint(a.stdout, usage)
		return nil
	default:
		fmt.Fprintf(a.stderr, "holdfast: no command %s\n%s", printable(name), usage)
		return errUsage
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	subject, err := subjectOf(name, flags.Args(), s)
	if err == nil && name == "watch" && s.every < 100*time.Millisecond {
		err = fmt.Errorf("-n %v: want at least 100ms", s.every)
	}
	if err != nil {
		fmt.Fprintln(a.stderr, "holdfast:", err)
		return errUsage
	}
	if s.url == "" {
		s.url = a.getenv("REDIS_URL")
	}
	client, err := a.connect(s.url, s.cluster)
	if err != nil {
		fmt.Fprintln(a.stderr, "holdfast:", err)
		return errUsage
	}
	defer client.Close()
	return act(ctx, client, s, subject)
}

// subjectOf returns the pattern or key that a command is about.
func subjectOf(command string, args []string, s settings) (string, error) {
	switch {
	case len(args) > 1:
		return "", fmt.Errorf("%s takes one argument, got %d: quote it, and put flags before it", command, len(args))
	case command != "show" && len(args) == 0:
		return "*", nil
	case command != "show":
		return args[0], checkGlob(args[0])
	case len(args) == 0:
		return "", errors.New("show needs a key")
	case !s.quoted:
		return args[0], nil
	}
	return unquote(args[0])
}
