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
	"strings"
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
	// KeyBase64 is set for keys that are not UTF-8, which JSON cannot represent.
	KeyBase64 string `json:"key_base64,omitempty"`
	Master    string `json:"master,omitempty"` // of several
	State     string `json:"state"`
	Label     string `json:"label,omitempty"`
	Value     string `json:"value,omitempty"` // the beginning of a foreign holder's value
	Token     int64  `json:"token,omitempty"`
	LeftMS    int64  `json:"time_left_ms,omitempty"`
	NoExpiry  bool   `json:"no_expiry,omitempty"`
	Holders   int    `json:"holders,omitempty"` // how many hold it together
	Limit     int    `json:"limit,omitempty"`   // the lowest of theirs; 0 if all are readers
	Waiting   int    `json:"waiting"`
	Shares    int    `json:"shares,omitempty"` // how many names the waiters have, if any has one
	Error     string `json:"error,omitempty"`

	Members []member `json:"members,omitempty"` // the holders that hold it together
	Line    []waiter `json:"line,omitempty"`    // the first waiters
}

// partial is the failure of some of the requests. The results of the others are still shown.
type partial struct{ errs []error }

func (p *partial) Error() string { return errors.Join(p.errs...).Error() }

const maxErrors = 10

// add keeps the first errors only, because a server that is down causes one for each of its keys.
func (p *partial) add(err error) {
	switch n := len(p.errs); {
	case n < maxErrors:
		p.errs = append(p.errs, err)
	case n == maxErrors:
		p.errs = append(p.errs, errors.New("more errors like these"))
	}
}

// errorsOf takes an error of several requests apart.
func errorsOf(err error) []error {
	if p := (*partial)(nil); errors.As(err, &p) {
		return p.errs
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// orNil returns p as an error, or nil if p is empty.
func (p *partial) orNil() error {
	if len(p.errs) == 0 {
		return nil
	}
	return p
}

// rows reads the locks that match on each master, by key.
func (m masters) rows(ctx context.Context, s *settings, pattern string) (all []row, err error) {
	var p partial
	for i, client := range m {
		some, err := rows(ctx, client, s, pattern)
		for k := range some {
			some[k].Master = m.name(i)
		}
		all = append(all, some...)
		for _, one := range errorsOf(err) {
			p.add(one)
		}
	}
	slices.SortStableFunc(all, func(a, b row) int { return strings.Compare(a.Key, b.Key) })
	return all, p.orNil()
}

// rows reads all locks of one master that match. It can return rows along with an error.
func rows(ctx context.Context, client redis.UniversalClient, s *settings, pattern string) ([]row, error) {
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
	var unnamed []int // held without a label
	var crowds []int  // held by several, or waited for
	for state, err := range locker.InspectAll(ctx, keys...) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := newRow(state.Key)
		switch {
		case err != nil:
			r.State, r.Error = failed, errorText(err)
			p.add(err)
		case state.Held:
			r.State, r.LeftMS, r.NoExpiry = held, state.TimeLeft.Milliseconds(), state.TimeLeft == 0
			if state.Limit != 1 {
				r.Holders, r.Limit = state.Holders, state.Limit
			} else if r.Label = state.Label; r.Label == "" {
				unnamed = append(unnamed, len(all))
			}
		}
		r.Token, r.Waiting, r.Shares = state.Token, state.Waiting, state.Shares
		if r.Holders > 0 || r.Waiting > 0 {
			crowds = append(crowds, len(all))
		}
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
			if _, own := ownLabel(value); value != "" && !own { // "" if it was released meanwhile
				all[chunk[i]].State, all[chunk[i]].Value = foreign, value
			}
		}
	}
	for chunk := range slices.Chunk(crowds, batch/4) { // each takes up to four reads
		if err := nameCrowds(ctx, client, all, chunk); err != nil {
			p.add(err)
			break
		}
	}
	return all, p.orNil()
}

// lineShown is how many waiters ls reads, and so can name.
const lineShown = mostNames

// nameCrowds adds to rows the holders and the waiters, which InspectAll only counts. It reads them a moment later than
// InspectAll. If an ACL does not allow that, only the numbers are shown.
func nameCrowds(ctx context.Context, client redis.UniversalClient, all []row, chunk []int) error {
	type reads struct {
		value   *redis.StringCmd
		several *redis.MapStringStringCmd
		line    *redis.StringSliceCmd
		ids     []string // of the line
		waits   *redis.SliceCmd
	}
	of := make([]reads, len(chunk))
	var now *redis.TimeCmd
	look := func(ask func(pipe redis.Pipeliner, r *row, base string, of *reads)) error {
		cmds, _ := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			now = pipe.Time(ctx)
			for i, k := range chunk {
				base, _ := baseOf(all[k].Key)
				ask(pipe, &all[k], base, &of[i])
			}
			return nil
		})
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil && !ofKey(err) && !redis.HasErrorPrefix(err, "NOPERM") {
				return err
			}
		}
		return nil
	}
	waited := false
	err := look(func(pipe redis.Pipeliner, r *row, base string, of *reads) {
		if r.Holders > 0 {
			of.value, of.several = pipe.GetRange(ctx, r.Key, 0, int64(valueHead)), pipe.HGetAll(ctx, base+"held")
		}
		if r.Waiting > 0 {
			waited, of.line = true, pipe.ZRange(ctx, base+"line", 0, lineShown)
		}
	})
	if err == nil && waited {
		err = look(func(pipe redis.Pipeliner, _ *row, base string, of *reads) {
			if of.line == nil {
				return
			}
			ids, _ := places(of.line.Val())
			if of.ids = ids[:min(len(ids), lineShown)]; len(of.ids) > 0 {
				of.waits = pipe.HMGet(ctx, base+"wait", of.ids...)
			}
		})
	}
	for i, k := range chunk {
		if of := &of[i]; of.value != nil {
			all[k].Members = newMembers(of.several.Val(), of.value.Val(), now.Val())
		}
		if of := &of[i]; of.waits != nil {
			all[k].Line = newLine(of.ids, of.waits.Val(), now.Val())
		}
	}
	return err
}

func newRow(key string) row {
	r := row{Key: key, State: free}
	if !utf8.ValidString(key) {
		r.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(key))
	}
	return r
}

// left returns the time that the holder's lease has left.
func (r *row) left() string {
	switch {
	case r.State != held && r.State != foreign:
		return "-"
	case r.NoExpiry:
		return "forever"
	}
	return brief(time.Duration(r.LeftMS) * time.Millisecond)
}

// holder names the holder, if known.
func (r *row) holder() string {
	switch {
	case r.Label != "":
		return printable(r.Label)
	case r.Limit > 0:
		return fmt.Sprintf("%d of %d", r.Holders, r.Limit)
	case r.Holders == 1:
		return "1 reader"
	case r.Holders > 0:
		return fmt.Sprintf("%d readers", r.Holders)
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

// since returns when the holder got the lock, by the clock of Redis. With several holders it is that of the first one still
// there. If it is not known, since returns the zero time.
func (r *row) since() time.Time {
	token := r.Token
	if r.Holders > 0 {
		token = 0
		for _, m := range r.Members {
			if token == 0 || m.Token < token {
				token = m.Token
			}
		}
	}
	if r.State != held || token == 0 {
		return time.Time{}
	}
	return time.UnixMicro(token)
}

func (a *app) list(ctx context.Context, on masters, s *settings, args []string) error {
	all, err := on.rows(ctx, s, patternOf(args))
	if err != nil && all == nil {
		return err
	}
	if s.json {
		if all == nil {
			all = []row{} // not null
		}
		return errors.Join(err, writeJSON(a.stdout, all))
	}
	return errors.Join(err, writeTable(a.stdout, cells(all)))
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
