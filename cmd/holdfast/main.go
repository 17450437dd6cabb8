// Holdfast runs a command under a lock, in any language, and shows and releases the locks on a live Redis.
//
//	holdfast run KEY -- command args   runs the command while it holds the lock
//	holdfast ls [pattern]              a table of all locks, or of those whose key matches a Redis pattern (* ? [a-z])
//	holdfast show KEY                  all that is known about one key
//	holdfast watch [pattern]           the table, redrawn every second (-n), as wide as the terminal
//	holdfast release KEY               takes the lock from its holder, after a question
//	holdfast help [command]            says more
//	holdfast completion bash           prints a script for bash, zsh or fish
//
// To install it:
//
//	go install github.com/holdfast-go/holdfast/cmd/holdfast@latest
//	export REDIS_URL=redis://:secret@10.0.0.5:6379/0
//	holdfast run migrations -- ./migrate up
//
// README.md in the same folder has recipes, covers Sentinel, Cluster, several masters, keys that ls cannot see, and what an
// ACL must allow. "holdfast help" lists the exit statuses.
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
	"syscall"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// Exit statuses: those of sysexits.h, if there is one.
const (
	statusDeclined    = 1
	statusNothing     = 3
	statusUsage       = 64
	statusUnavailable = 69
	statusLost        = 70
	statusHeld        = 75
	statusStopped     = 130
)

func main() {
	if len(os.Args) > 3 && os.Args[1] == guardVerb {
		os.Exit(guard(os.Args[2:]))
	}
	ctx, stop := context.WithCancel(context.Background())
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		if !signal.Ignored(sig) { // as in the background of a shell script
			ctx, stop = signal.NotifyContext(ctx, sig)
			context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the program at once
		}
	}
	defer stop()
	redis.SetLogger(quiet{})
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, connect: connect}
	info, err := os.Stdout.Stat()
	a.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	a.size = func() (columns, rows int) { return windowSize(os.Stdout) }
	os.Exit(a.run(ctx, os.Args[1:]))
}

// quiet keeps go-redis from writing errors into the table. They are also returned.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// app is the program with its dependencies on the outside.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool                       // stdout is a terminal
	size           func() (columns, rows int) // of the terminal; 0 if not known
	getenv         func(string) string
	connect        func(url string) (redis.UniversalClient, error)
}

// exit is an error with an exit status of its own.
type exit struct {
	status int
	text   string // of what to say; "" for nothing
}

func (e *exit) Error() string {
	if e.text == "" {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.text
}

// errUsage stands for a wrong command line that has already been reported.
var errUsage = &exit{status: statusUsage}

func (a *app) run(ctx context.Context, args []string) int {
	err := a.command(ctx, args)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if own := (*exit)(nil); errors.As(err, &own) {
		if own.text != "" {
			fmt.Fprintln(a.stderr, "holdfast:", printableText(own.text))
		}
		return own.status
	}
	if ctx.Err() != nil {
		return statusStopped
	}
	for _, one := range errorsOf(err) {
		fmt.Fprintln(a.stderr, "holdfast:", explain(one))
	}
	switch {
	case errors.Is(err, holdfast.ErrInvalid):
		return statusUsage
	case errors.Is(err, holdfast.ErrNotAcquired):
		return statusHeld
	case errors.Is(err, holdfast.ErrLost):
		return statusLost
	case errors.Is(err, errNothing):
		return statusNothing
	}
	return statusUnavailable
}

func (a *app) command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(a.stderr, usage())
		return errUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		return a.help(args)
	case "completion":
		return a.completion(args)
	}
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == name })
	if i < 0 {
		fmt.Fprintf(a.stderr, "holdfast: no command %s\n%s", printable(name), usage())
		return errUsage
	}
	v, s := verbs[i], &settings{}
	flags := v.flagSet(s)
	flags.SetOutput(a.stderr)
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return errUsage
	}
	args = flags.Args()
	if err := v.check(s, args); err != nil {
		return &exit{statusUsage, err.Error()}
	}
	if len(s.urls) == 0 {
		s.urls = list(a.getenv("REDIS_URL"))
	}
	var all masters
	defer func() { go all.close() }() // go-redis waits there for a reply that is on its way, for ever if it does not come
	for _, url := range s.urls {
		client, err := a.connect(url)
		if err != nil {
			return &exit{statusUsage, err.Error()}
		}
		all = append(all, client)
	}
	return v.act(a, ctx, all, s, args)
}
