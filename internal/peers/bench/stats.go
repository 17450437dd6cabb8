package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// tally is how often commands ran and for how long, in µs.
type tally struct{ calls, usec int64 }

// stats is Redis' statistics by command, lower case.
type stats map[string]tally

func (t *target) resetStats(ctx context.Context) error {
	if err := t.rdb.ConfigResetStat(ctx).Err(); err != nil {
		return fmt.Errorf("reset the server's statistics: %w", err)
	}
	return nil
}

// stats returns what ran since the last reset.
func (t *target) stats(ctx context.Context) (stats, error) {
	info, err := t.rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, fmt.Errorf("the server's statistics: %w", err)
	}
	return parseStats(info)
}

// overhead are commands of the measurement itself and of connections that open.
var overhead = []string{"config", "info", "hello", "client", "auth", "select"}

// parseStats reads lines such as "cmdstat_client|setinfo:calls=2,usec=5,usec_per_call=2.50".
func parseStats(info string) (stats, error) {
	s := stats{}
	for line := range strings.Lines(info) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_")
		if !ok {
			continue
		}
		name, fields, _ := strings.Cut(rest, ":")
		name, _, _ = strings.Cut(name, "|")
		if slices.Contains(overhead, name) {
			continue
		}
		var n tally
		if _, err := fmt.Sscanf(fields, "calls=%d,usec=%d,", &n.calls, &n.usec); err != nil {
			return nil, fmt.Errorf("the server's statistics: line %q: %w", line, err)
		}
		s[name] = s[name].plus(n)
	}
	return s, nil
}

func (t tally) plus(o tally) tally { return tally{t.calls + o.calls, t.usec + o.usec} }

// split tells the commands named in sends from the others, which scripts called.
func (s stats) split(sends []string) (sent, inside tally) {
	for name, n := range s {
		if slices.Contains(sends, name) {
			sent = sent.plus(n)
		} else {
			inside = inside.plus(n)
		}
	}
	return sent, inside
}
