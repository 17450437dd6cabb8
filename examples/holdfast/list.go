package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// States of a key.
const (
	held    = "held"
	foreign = "foreign" // held, under a value that holdfast did not write
	free    = "free"
	failed  = "error"
)

// row is one key, in the table and in JSON.
type row struct {
	Key string `json:"key"`
	// KeyBase64 is there for keys that are not UTF-8, which JSON cannot have.
	KeyBase64 string `json:"key_base64,omitempty"`
	State     string `json:"state"`
	Label     string `json:"label,omitempty"`
	Value     string `json:"value,omitempty"` // of a foreign holder, the beginning
	Token     int64  `json:"token,omitempty"`
	LeftMS    int64  `json:"time_left_ms,omitempty"`
	NoExpiry  bool   `json:"no_expiry,omitempty"`
	Holders   int    `json:"holders,omitempty"` // that hold it together
	Limit     int    `json:"limit,omitempty"`   // the least of theirs; none with readers alone
	Waiting   int    `json:"waiting"`
	Error     string `json:"error,omitempty"`
}

// partial is the failure of some of what was asked, beside which the rest is told.
type partial struct{ errs []error }

func (p *partial) Error() string { return errors.Join(p.errs...).Error() }

const maxErrors = 10

// add keeps the first errors: where a server is down, that is said once for each of its keys.
func (p *partial) add(err error) {
	switch n := len(p.errs); {
	case n < maxErrors:
		p.errs = append(p.errs, err)
	case n == maxErrors:
		p.errs = append(p.errs, errors.New("more of the like"))
	}
}

// orNil keeps an empty one from being an error.
func (p *partial) orNil() error {
	if len(p.errs) == 0 {
		return nil
	}
	return p
}

// rows looks at all locks that match. With an error there may be some too.
func rows(ctx context.Context, client redis.UniversalClient, s settings, pattern string) ([]row, error) {
	keys, err := find(ctx, client, pattern, s.all)
	var p partial
	if err != nil {
		if len(keys) == 0 || ctx.Err() != nil {
			return nil, err
		}
		p.add(err)
	}
	locker, err := holdfast.New(client)
	if err != nil {
		return nil, err
	}
	var all []row
	var unnamed []int // held by nobody who says so
	for state, err := range locker.InspectAll(ctx, keys...) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := newRow(state.Key)
		switch {
		case err != nil:
			r.State, r.Error = failed, printableText(err.Error())
			p.add(err)
		case state.Held:
			r.State, r.LeftMS, r.NoExpiry = held, state.TimeLeft.Milliseconds(), state.TimeLeft == 0
			if state.Limit != 1 {
				r.Holders, r.Limit = state.Holders, state.Limit
			} else if r.Label = state.Label; r.Label == "" {
				unnamed = append(unnamed, len(all))
			}
		}
		r.Token, r.Waiting = state.Token, state.Waiting
		all = append(all, r)
	}
	for chunk := range slices.Chunk(unnamed, batch) {
		keys := make([]string, len(chunk))
		for i, k := range chunk {
			keys[i] = all[k].Key
		}
		values, err := heads(ctx, client, keys)
		if err != nil {
			p.add(err)
			break
		}
		for i, value := range values {
			if _, own := ownLabel(value); value != "" && !own { // "" where it was released meanwhile
				all[chunk[i]].State, all[chunk[i]].Value = foreign, value
			}
		}
	}
	return all, p.orNil()
}

func newRow(key string) row {
	r := row{Key: key, State: free}
	if !utf8.ValidString(key) {
		r.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(key))
	}
	return r
}

// left is the time that a holder has left.
func (r *row) left() string {
	switch {
	case r.State != held && r.State != foreign:
		return "-"
	case r.NoExpiry:
		return "forever"
	}
	return brief(time.Duration(r.LeftMS) * time.Millisecond)
}

// holder names the holder, as far as it is known.
func (r *row) holder() string {
	switch {
	case r.Label != "":
		return printable(r.Label)
	case r.Limit > 0:
		return fmt.Sprintf("%d of %d", r.Holders, r.Limit)
	case r.Holders > 0:
		return fmt.Sprintf("%d shared", r.Holders)
	case r.State == foreign:
		return printable(r.Value[:min(len(r.Value), 32)])
	}
	return "-"
}

func (r *row) token() string {
	if r.Token == 0 {
		return "-"
	}
	return strconv.FormatInt(r.Token, 10)
}

func (a *app) list(ctx context.Context, client redis.UniversalClient, s settings, pattern string) error {
	all, err := rows(ctx, client, s, pattern)
	if err != nil && all == nil {
		return err
	}
	if s.json {
		if all == nil {
			all = []row{} // not null
		}
		return errors.Join(err, writeJSON(a.stdout, all))
	}
	return errors.Join(err, writeTable(a.stdout, all))
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func writeTable(w io.Writer, all []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tSTATE\tHOLDER\tTOKEN\tLEFT\tWAITING")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\n", printable(r.Key), r.State, r.holder(), r.token(), r.left(), r.Waiting)
	}
	return t.Flush()
}
