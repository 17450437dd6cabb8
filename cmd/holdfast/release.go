package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

//go:embed release.lua
var releaseLua string

func releaseFlags(flags *flag.FlagSet, s *settings) {
	flags.BoolVar(&s.yes, "yes", false, "do not ask")
	flags.Int64Var(&s.token, "token", 0, "of several holders, the one with that fencing `token`")
	flags.BoolVar(&s.quoted, "quoted", false, `KEY is quoted in Go syntax, as ls prints unusual keys: "a\x00b"`)
}

// release takes a lock from its holder by hand: from the one that was shown, and from no other that has the lock by then.
func (a *app) release(ctx context.Context, client redis.UniversalClient, s *settings, args []string) error {
	key, _ := keyOf(s, args)
	d, err := look(ctx, client, key)
	if err != nil {
		return err
	}
	if d.State == free {
		return &exit{statusNothing, printable(key) + ": nobody holds it"}
	}
	owner, err := d.pick(s.token)
	if err != nil {
		return err
	}
	if err := d.write(a.stdout); err != nil {
		return err
	}
	if !s.yes && !a.confirm("The holder works on until it notices, at its next renewal, a third of its lease later at most.\nTake the lock from it? [y/N] ") {
		return &exit{statusDeclined, "nothing was changed"}
	}
	base, _ := baseOf(key)
	switch n, err := client.Eval(ctx, releaseLua, []string{key, base + "held"}, d.value, owner.id, owner.Token).Int(); {
	case err != nil:
		return err
	case n == 0:
		return &exit{statusHeld, printable(key) + ": that holder no longer has it, and nothing was changed"}
	}
	return a.serve(ctx, client, key)
}

// pick returns the holder with that token, or, without one, the only holder. That has no id if it has the lock alone, or
// by a re-entry id: then the lock is taken from all that have it.
func (d *details) pick(token int64) (member, error) {
	var all []member
	for _, m := range d.Members {
		if m.Token != 0 {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		if token != 0 && token != d.Token {
			return member{}, &exit{statusHeld, fmt.Sprintf("%s: its holder has the token %s", printable(d.Key), d.token())}
		}
		return member{}, nil
	}
	for _, m := range all {
		if m.Token == token || token == 0 && len(all) == 1 {
			return m, nil
		}
	}
	return member{}, &exit{statusUsage, fmt.Sprintf("%s: %d hold it together: say which by -token, as show lists them", printable(d.Key), len(all))}
}

func (a *app) confirm(question string) bool {
	fmt.Fprint(a.stdout, question)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	return strings.EqualFold(strings.TrimSpace(answer), "y") || strings.EqualFold(strings.TrimSpace(answer), "yes")
}

// serve lets in those that wait. An acquire does that on its way, as after a lease that ended; whether it gets the lock does
// not matter.
func (a *app) serve(ctx context.Context, client redis.UniversalClient, key string) error {
	locker, err := holdfast.New(client)
	if err != nil {
		return err
	}
	lock, err := locker.TryAcquire(ctx, key, holdfast.WithLabel("holdfast release"))
	if err == nil {
		err = lock.Release(ctx)
	} else if errors.Is(err, holdfast.ErrNotAcquired) {
		err = nil
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(err, locker.Shutdown(end))
}
