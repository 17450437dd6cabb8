package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"
)

// settings are the values of the flags.
type settings struct {
	urls   []string
	all    bool
	json   bool
	quoted bool
	every  time.Duration

	wait, ttl, grace  time.Duration
	try, shared, lead bool
	limit             int
	quarantine        *time.Duration
	label             string

	yes   bool
	token int64
}

// verb is a command of the tool.
type verb struct {
	name, args, what string
	flags            func(*flag.FlagSet, *settings)
	check            func(s *settings, args []string) error
	act              func(a *app, ctx context.Context, all masters, s *settings, args []string) error
}

var verbs = []verb{
	{"run", "KEY -- command args", "runs a command under the lock", runFlags, checkRun, (*app).runCommand},
	{"ls", "[pattern]", "all locks, or those whose key matches", listFlags, checkPattern, (*app).list},
	{"show", "KEY", "all that is known about one key", showFlags, checkKey, (*app).show},
	{"watch", "[pattern]", "like ls, redrawn every second", watchFlags, checkPattern, (*app).watch},
	{"release", "KEY", "takes a lock from its holder", releaseFlags, checkKey, (*app).release},
}

// usage lists the commands.
func usage() string {
	var b strings.Builder
	b.WriteString("usage:\n")
	for _, v := range verbs {
		fmt.Fprintf(&b, "  holdfast %-7s [flags] %-20s %s\n", v.name, v.args, v.what)
	}
	b.WriteString("  holdfast help [command]                       says more; flags go before a key or a pattern\n")
	b.WriteString("  holdfast completion bash|zsh|fish             prints a script for a shell\n")
	return b.String()
}

func (v verb) flagSet(s *settings) *flag.FlagSet {
	flags := flag.NewFlagSet("holdfast "+v.name, flag.ContinueOnError)
	flags.Func("redis", "`URL` or host:port of Redis; several, for independent masters; REDIS_URL does not show in ps (default REDIS_URL, or "+defaultURL+")", func(text string) error {
		s.urls = append(s.urls, list(text)...)
		return nil
	})
	v.flags(flags, s)
	return flags
}

func listFlags(flags *flag.FlagSet, s *settings) {
	flags.BoolVar(&s.all, "all", false, "look at every string key, even if no key of holdfast's goes with it: slow")
	flags.BoolVar(&s.json, "json", false, "print JSON")
}

func watchFlags(flags *flag.FlagSet, s *settings) {
	listFlags(flags, s)
	flags.DurationVar(&s.every, "n", time.Second, "the `pause` between two scans of Redis, at least 100ms")
}

func showFlags(flags *flag.FlagSet, s *settings) {
	flags.BoolVar(&s.json, "json", false, "print JSON")
	flags.BoolVar(&s.quoted, "quoted", false, `KEY is quoted in Go syntax, as ls prints unusual keys: "a\x00b"`)
}

func checkPattern(s *settings, args []string) error {
	switch {
	case s.every != 0 && s.every < 100*time.Millisecond:
		return fmt.Errorf("-n %v: want at least 100ms", s.every)
	case len(args) > 1:
		return fmt.Errorf("want one argument, got %d: quote it, and put flags before it", len(args))
	}
	return checkGlob(patternOf(args))
}

func patternOf(args []string) string {
	if len(args) == 0 {
		return "*"
	}
	return args[0]
}

func checkKey(s *settings, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("this needs a key, and one only: got %d arguments; flags go before it", len(args))
	}
	_, err := keyOf(s, args)
	return err
}

func keyOf(s *settings, args []string) (string, error) {
	key := args[0]
	if s.quoted {
		var err error
		if key, err = unquote(key); err != nil {
			return "", err
		}
	}
	if _, ok := baseOf(key); !ok {
		return "", fmt.Errorf("%s cannot be a lock's key", printable(key))
	}
	return key, nil
}

var errNothing = errors.New("nothing is known about this key: nobody holds it, and no fence remembers a holder")
