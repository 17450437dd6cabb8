package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxLine is how many waiters show lists.
const maxLine = 100

// details is all that is known about a key.
type details struct {
	row
	History *history `json:"fence,omitempty"`
	value   string   // of the lock, its first bytes
	Tick    string   `json:"claimed,omitempty"` // the last tick of this name that was claimed
}

func (a *app) show(ctx context.Context, on masters, s *settings, args []string) error {
	key, _ := keyOf(s, args)
	known := false
	var p partial
	for i, client := range on {
		d, err := look(ctx, client, key)
		if err != nil {
			p.add(err)
			continue
		}
		d.Master = on.name(i)
		empty := d.State == free && d.History == nil && d.Waiting == 0 && d.Tick == ""
		switch {
		case s.json:
			err = writeJSON(a.stdout, d)
		case !empty:
			err = d.write(a.stdout)
		}
		if err != nil {
			return err
		}
		known = known || !empty
	}
	if !known && len(p.errs) == 0 {
		return fmt.Errorf("%s: %w", printable(key), errNothing)
	}
	return p.orNil()
}

// look reads a lock and its companions at one moment, and the entries of the waiters right after. It does not use a Locker,
// because a Locker returns neither the history nor the line.
func look(ctx context.Context, client redis.UniversalClient, key string) (*details, error) {
	base, _ := baseOf(key)
	var (
		value, fence, mark *redis.StringCmd
		left, fenceLeft    *redis.DurationCmd
		line               *redis.StringSliceCmd
		waiting, shares    *redis.IntCmd
		several            *redis.MapStringStringCmd
		now                *redis.TimeCmd
	)
	cmds, err := client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		value, left = tx.GetRange(ctx, key, 0, int64(valueHead)), tx.PTTL(ctx, key)
		fence, fenceLeft = tx.GetRange(ctx, base+"fence", 0, 255), tx.PTTL(ctx, base+"fence")
		line, waiting = tx.ZRange(ctx, base+"line", 0, maxLine), tx.ZCard(ctx, base+"line")
		shares = tx.ZCount(ctx, base+"share", "0", "(4503599627370496") // beyond that are names that do not wait
		several, mark = tx.HGetAll(ctx, base+"held"), tx.GetRange(ctx, base+"mark", 0, 63)
		now = tx.Time(ctx) // it has no key, so a Cluster client sends it along with the rest
		return nil
	})
	if redis.HasErrorPrefix(value.Err(), "WRONGTYPE") {
		return nil, fmt.Errorf("%s holds another type of data than a lock's: %w", printable(key), value.Err())
	}
	for _, cmd := range cmds { // a companion of another type is damaged, but the rest is still worth showing
		if cmd.Err() != nil && !redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE") {
			return nil, cmd.Err()
		}
	}
	if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, err
	}
	d := &details{row: newRow(key), value: value.Val(), History: newHistory(fence.Val(), fenceLeft.Val())}
	ids, marks := places(line.Val())
	ids = ids[:min(len(ids), maxLine)]
	d.Waiting, d.Shares = int(waiting.Val())-marks, int(shares.Val())*marks
	d.Members = newMembers(several.Val(), value.Val(), now.Val())
	if n := left.Val(); n != -2 { // go-redis leaves -1 and -2 as they are
		d.State, d.NoExpiry, d.LeftMS = held, n == -1, max(0, n.Milliseconds())
		own := false
		if d.Label, own = ownLabel(value.Val()); !own {
			d.State, d.Label, d.Value = foreign, "", value.Val()
		}
		for i, m := range d.Members {
			if i == 0 || m.LeftMS < d.LeftMS { // the key lasts as long as the longest lease
				d.LeftMS = m.LeftMS
			}
			if m.Token == 0 {
				continue
			}
			if d.Holders++; d.Limit == 0 || int(m.Limit) < d.Limit {
				d.Limit = int(m.Limit)
			}
		}
		if of, ok := several.Val()["of"]; ok && of == value.Val() && len(d.Members) == 0 {
			d.State, d.Label, d.LeftMS = free, "", 0 // all holders have left: the next caller takes it
		}
	}
	if d.History != nil {
		d.Token = d.History.Last
		if d.History.Live != 0 {
			d.Token = d.History.Live
		}
	}
	if us, _, _ := strings.Cut(mark.Val(), " "); us != "" {
		if n, err := strconv.ParseInt(us, 10, 64); err == nil {
			d.Tick = time.UnixMicro(n).UTC().Format(time.RFC3339Nano)
		}
	}
	if len(ids) > 0 {
		entries, err := client.HMGet(ctx, base+"wait", ids...).Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, err
		}
		d.Line = newLine(ids, entries, now.Val())
	}
	return d, nil
}

// newLine makes waiters of the ids in line and of the entry that Redis keeps for each, if it keeps one.
func newLine(ids []string, entries []any, now time.Time) (all []waiter) {
	entries = append(entries, make([]any, len(ids)-len(entries))...)
	for i, id := range ids {
		text, _ := entries[i].(string)
		all = append(all, newWaiter(id, text, now))
	}
	return all
}

func (d *details) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	line("key", "%s", d.name())
	line("state", "%s", d.State)
	if d.State != free {
		line("holder", "%s", d.holder())
		line("time left", "%s", d.left())
	}
	for _, m := range d.Members {
		left := brief(time.Duration(m.LeftMS) * time.Millisecond)
		switch {
		case m.Token == 0: // holds by a re-entry id
			line("held together", "%s, %s left", orDash(m.Label), left)
		case m.Shared:
			line("reader", "%s, %s left, token %d, issued %s UTC", orDash(m.Label), left, m.Token, tokenTime(m.Token))
		default:
			line("permit", "%s, %s left, token %d, issued %s UTC, limit %d", orDash(m.Label), left, m.Token, tokenTime(m.Token), m.Limit)
		}
	}
	if h := d.History; h != nil {
		line("token", "%s", d.token())
		switch {
		case d.Holders > 0:
			line("", "issued %s UTC, to the latest of them", tokenTime(d.Token))
		case h.Live != 0 && d.State == held:
			line("", "issued %s UTC", tokenTime(h.Live))
		case h.Live != 0:
			line("", "issued %s UTC, and not released: its lease ran out, or Redis forgot the lock", tokenTime(h.Live))
		default:
			line("", "released")
		}
		if h.Last != d.Token {
			line("last token", "%d, the end of a reserved block", h.Last)
		}
		for _, token := range h.Lost {
			line("lost", "%d, issued %s UTC, ended without a release", token, tokenTime(token))
		}
		line("known since", "token %d", h.Since)
		line("remembered", "for %s more", brief(time.Duration(h.LeftMS)*time.Millisecond))
	} else {
		line("token", "not remembered: a fence lives for a TTL and a minute after an acquisition")
	}
	line("waiting", "%s", d.waiting())
	for i, one := range d.Line {
		how := "polls"
		switch {
		case one.Gone:
			how = "gone, will be passed over"
		case one.Told:
			how = "will be notified"
		}
		wants := ""
		if one.Share != "" {
			wants = " of " + printable(one.Share)
		}
		switch {
		case one.Shared:
			wants += ", to read"
		case one.Limit > 0:
			wants += fmt.Sprintf(", for a permit of %d", one.Limit)
		case d.mixed():
			wants += ", to be alone"
		}
		line("", "%d. %s%s, %s", i+1, orDash(one.Label), wants, how)
	}
	if rest := d.Waiting - len(d.Line); rest > 0 && len(d.Line) > 0 {
		line("", "and %d more", rest)
	}
	if d.Tick != "" {
		line("claimed", "the tick of %s", d.Tick)
	}
	return t.Flush()
}

// mixed reports whether several callers hold the lock together, or want to.
func (d *details) mixed() bool {
	return d.Holders > 0 || slices.ContainsFunc(d.Line, func(w waiter) bool { return w.Shared || w.Limit > 0 })
}

func orDash(label string) string {
	if label == "" {
		return "-"
	}
	return printable(label)
}
