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
)

//go:embed release.lua
var releaseLua string

func releaseFlags(flags *flag.FlagSet, s *settings) {
	flags.BoolVar(&s.yes, "yes", false, "do not ask")
	flags.Int64Var(&s.token, "token", 0, "of several holders, the one with that fencing `token`")
	flags.BoolVar(&s.quoted, "quoted", false, `KEY is quoted in Go syntax, as ls prints unusual keys: "a\x00b"`)
}

// release takes a lock from its holder by hand: from the one that was shown, and from no other that has the lock by then.
func (a *app) release(ctx context.Context, on masters, s *settings, args []string) error {
	key, _ := keyOf(s, args)
	seen := make([]*details, len(on))
	var d *details // of several masters, the first on which somebody holds the lock
	for i, client := range on {
		var err error
		if seen[i], err = look(ctx, client, key); err != nil {
			return err
		}
		if d == nil || d.State == free {
			d = seen[i]
		}
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
	taken := 0
	for i, client := range on {
		if !d.same(seen[i]) {
			continue // nobody, or a holder that most of several masters do not know
		}
		n, err := client.Eval(ctx, releaseLua, []string{key, base + "held", base + "gone:" + seen[i].value}, seen[i].value, owner.id, owner.Token).Int()
		if err != nil {
			return err
		}
		taken += n
	}
	if taken == 0 {
		return &exit{statusHeld, printable(key) + ": that holder no longer has it, and nothing was changed"}
	}
	if len(on) > 1 {
		return nil // waiters poll
	}
	return a.serve(ctx, on, key)
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

// same reports whether two masters speak of the same holder. The values of holdfast differ from master to master, but the
// token is the same; foreign locks have the same value.
func (d *details) same(o *details) bool {
	return o.State == d.State && o.Label == d.Label && o.Token == d.Token && (d.State != foreign || o.value == d.value)
}

func (a *app) confirm(question string) bool {
	fmt.Fprint(a.stdout, question)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	return strings.EqualFold(strings.TrimSpace(answer), "y") || strings.EqualFold(strings.TrimSpace(answer), "yes")
}

// serve lets in those that wait. An acquire does that on its way, as after a lease that ended; whether it gets the lock does
// not matter.
func (a *app) serve(ctx context.Context, on masters, key string) error {
	locker, err := on.locker()
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
