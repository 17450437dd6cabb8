package sqltest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/sqlfence"
)

// history is what the holders of some resources saw, in the order of one clock.
type history struct {
	clock atomic.Int64
	txs   atomic.Int64

	mu       sync.Mutex
	events   []event
	advances map[string]map[int64]bool // tokens by resource that Advance may have raised
	alone    bool                      // nothing is parallel, so that no guard has to be advanced first
}

// event is a transaction of one holder, as seen from the outside.
type event struct {
	tx       int64
	marks    []sqlfence.Mark
	began    int64 // just before COMMIT was sent, or 0
	returned int64
	err      error
}

func (h *history) add(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

func (h *history) advanced(marks []sqlfence.Mark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range marks {
		if h.advances[m.Resource] == nil {
			h.advances[m.Resource] = map[int64]bool{}
		}
		h.advances[m.Resource][m.Token] = true
	}
}

// entry is a row that a committed transaction left: the value of the resource's counter that it read.
type entry struct {
	tx, token, value int64
	resource         string
}

// verdict sums a history up.
type verdict struct {
	commits, refusals, unknown, aborted int
	order                               int // a commit with an older token began after a newer one had returned
	falls                               int // the tokens fall in the order of the database itself
	lost                                int // two committed transactions read the same value, or the sum is off
	ghosts                              int // reported as committed, but not there, or the other way round
	falseRefusals                       int // by a token that was not larger or that was never committed, or because of others in parallel
	example                             string
}

func (v verdict) violations() int { return v.order + v.falls + v.lost + v.ghosts + v.falseRefusals }

// stale are the violations that a fence is there to prevent.
func (v verdict) stale() int { return v.order + v.falls + v.lost }

func (v verdict) String() string {
	return fmt.Sprintf("%d commits, %d refusals, %d unknown, %d aborted; violations: %d order, %d falling, %d lost, %d ghosts, %d false refusals",
		v.commits, v.refusals, v.unknown, v.aborted, v.order, v.falls, v.lost, v.ghosts, v.falseRefusals)
}

func (v *verdict) note(n *int, format string, args ...any) {
	*n++
	if v.example == "" {
		v.example = fmt.Sprintf(format, args...)
	}
}

// judge compares what the holders saw with what is in the database.
func (h *history) judge(entries []entry, counters map[string]int64) (v verdict) {
	stored := map[int64][]entry{}
	byResource := map[string][]entry{}
	for _, e := range entries {
		stored[e.tx] = append(stored[e.tx], e)
		byResource[e.resource] = append(byResource[e.resource], e)
	}
	committed := map[string]map[int64]bool{}
	for r, tokens := range h.advances {
		committed[r] = maps.Clone(tokens)
	}
	for _, e := range entries {
		if committed[e.resource] == nil {
			committed[e.resource] = map[int64]bool{}
		}
		committed[e.resource][e.token] = true
	}
	type commit struct{ token, began, returned int64 }
	commits := map[string][]commit{}
	for _, e := range h.events {
		rows := stored[e.tx]
		var stale *sqlfence.StaleError
		switch {
		case e.err == nil:
			v.commits++
			if len(rows) != len(e.marks) {
				v.note(&v.ghosts, "tx %d was reported as committed and left %d rows of %d", e.tx, len(rows), len(e.marks))
			}
			for _, m := range e.marks {
				commits[m.Resource] = append(commits[m.Resource], commit{m.Token, e.began, e.returned})
			}
			continue
		case errors.Is(e.err, sqlfence.ErrCommitUnknown):
			v.unknown++
			if len(rows) > 0 {
				for _, m := range e.marks { // it took effect at some time after it was sent
					commits[m.Resource] = append(commits[m.Resource], commit{m.Token, e.began, 1 << 62})
				}
			}
			continue
		case errors.As(e.err, &stale):
			v.refusals++
			if stale.Current <= stale.Token || !committed[stale.Resource][stale.Current] {
				v.note(&v.falseRefusals, "tx %d: %v, which nobody has committed", e.tx, stale)
			}
		case h.alone && errors.Is(e.err, holdfast.ErrInvalid):
			v.note(&v.falseRefusals, "tx %d: %v", e.tx, e.err)
		default:
			v.aborted++
		}
		if len(rows) > 0 {
			v.note(&v.ghosts, "tx %d is there in spite of %v", e.tx, e.err)
		}
	}
	for r, all := range commits {
		slices.SortFunc(all, func(a, b commit) int { return cmp.Compare(a.returned, b.returned) })
		// For each commit, the largest token among those that had returned before it began.
		for _, late := range all {
			newest := int64(0)
			for _, early := range all {
				if early.returned >= late.began {
					break
				}
				newest = max(newest, early.token)
			}
			if newest > late.token {
				v.note(&v.order, "%s: a commit with token %d began after one with %d had returned", r, late.token, newest)
			}
		}
	}
	for r, all := range byResource {
		slices.SortFunc(all, func(a, b entry) int { return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.tx, b.tx)) })
		for i, e := range all {
			if i > 0 && e.value == all[i-1].value {
				v.note(&v.lost, "%s: txs %d and %d both read %d", r, all[i-1].tx, e.tx, e.value)
			}
			if i > 0 && e.token < all[i-1].token {
				v.note(&v.falls, "%s: value %d was written with token %d, after one with %d", r, e.value, e.token, all[i-1].token)
			}
		}
		if counters[r] != int64(len(all)) {
			v.note(&v.lost, "%s: counted %d in %d transactions", r, counters[r], len(all))
		}
	}
	return v
}

// historyTables are what a holder's work writes, beside rows that deadlock.
const shared = 4

func (c *cell) historyTables(t *testing.T) {
	text := "varchar(60) PRIMARY KEY"
	if c.dialect == sqlfence.MySQL {
		text = "varbinary(60) PRIMARY KEY"
	}
	for _, table := range []string{"h_counter (resource " + text + ", value bigint NOT NULL)",
		"h_entry (tx bigint, resource varchar(60), token bigint, value bigint, PRIMARY KEY (tx, resource))",
		"h_shared (id bigint PRIMARY KEY, n bigint NOT NULL)"} {
		c.exec(t, "CREATE TABLE "+table)
	}
	for id := range shared {
		c.exec(t, "INSERT INTO h_shared (id, n) VALUES (?, 0)", id)
	}
}

// work is what a transaction does for each of its resources: it reads the counter, and writes it back with one more, or has the
// database add one if it is not alone.
func (c *cell) work(ctx context.Context, tx dbtx, id int64, marks []sqlfence.Mark, pause func()) error {
	for _, m := range marks {
		add, read := "UPDATE h_counter SET value = value + 1 WHERE resource = ?", "SELECT value FROM h_counter WHERE resource = ?"
		if m.Parallel { // beside others of its token, so that the database has to count
			pause()
			if _, err := tx.ExecContext(ctx, c.q(add), m.Resource); err != nil {
				return err
			}
			read = "SELECT value - 1 FROM h_counter WHERE resource = ?"
		}
		value, err := counted(tx.QueryContext(ctx, c.q(read), m.Resource))
		if err != nil {
			return err
		}
		if !m.Parallel {
			pause()
			if _, err := tx.ExecContext(ctx, c.q("UPDATE h_counter SET value = ? WHERE resource = ?"), value+1, m.Resource); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, c.q("INSERT INTO h_entry (tx, resource, token, value) VALUES (?, ?, ?, ?)"), id, m.Resource, m.Token, value)
		if err != nil {
			return err
		}
	}
	return nil
}

// counted is not QueryRow, as gorm's prepared statements make an empty Row of an error.
func counted(rows *sql.Rows, err error) (n int64, _ error) {
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		err = rows.Scan(&n)
	}
	return n, errors.Join(err, rows.Err())
}

// left reads what the transactions left.
func (c *cell) left(t *testing.T) (entries []entry, counters map[string]int64) {
	rows, err := c.db.Query("SELECT tx, resource, token, value FROM h_entry")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.tx, &e.resource, &e.token, &e.value); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	counters = map[string]int64{}
	values, err := c.db.Query("SELECT resource, value FROM h_counter")
	if err != nil {
		t.Fatal(err)
	}
	defer values.Close()
	for values.Next() {
		var resource string
		var value int64
		if err := values.Scan(&resource, &value); err != nil {
			t.Fatal(err)
		}
		counters[resource] = value
	}
	return entries, counters
}

// TestJudgeCanFail gives the checker one history for each kind of violation.
func TestJudgeCanFail(t *testing.T) {
	m := func(token int64) []sqlfence.Mark { return []sqlfence.Mark{mark("r", token)} }
	ok := event{tx: 1, marks: m(5), began: 1, returned: 2}
	row := entry{tx: 1, token: 5, value: 0, resource: "r"}
	tests := map[string]struct {
		events  []event
		entries []entry
		sum     int64
		want    string // empty: nothing wrong
	}{
		"in order":   {[]event{ok, {tx: 2, marks: m(6), began: 3, returned: 4}}, []entry{row, {2, 6, 1, "r"}}, 2, ""},
		"overlap":    {[]event{ok, {tx: 2, marks: m(6), began: 1, returned: 3}}, []entry{row, {2, 6, 1, "r"}}, 2, ""},
		"late":       {[]event{ok, {tx: 2, marks: m(4), began: 3, returned: 4}}, []entry{{2, 4, 0, "r"}, {1, 5, 1, "r"}}, 2, "1 order"},
		"falling":    {[]event{ok, {tx: 2, marks: m(4), began: 1, returned: 4}}, []entry{row, {2, 4, 1, "r"}}, 2, "1 falling"},
		"lost":       {[]event{ok, {tx: 2, marks: m(6), began: 3, returned: 4}}, []entry{row, {2, 6, 0, "r"}}, 2, "1 lost"},
		"lost count": {[]event{ok}, []entry{row}, 2, "1 lost"},
		"missing":    {[]event{ok, {tx: 2, marks: m(6), began: 3, returned: 4}}, []entry{row}, 1, "1 ghosts"},
		"ghost":      {[]event{ok, {tx: 2, marks: m(6), err: errAbort}}, []entry{row, {2, 6, 1, "r"}}, 2, "1 ghosts"},
		"unknown":    {[]event{ok, {tx: 2, marks: m(6), began: 3, err: sqlfence.ErrCommitUnknown}}, []entry{row, {2, 6, 1, "r"}}, 2, ""},
		"unknown late": {[]event{ok, {tx: 2, marks: m(4), began: 3, err: sqlfence.ErrCommitUnknown}},
			[]entry{{2, 4, 0, "r"}, {1, 5, 1, "r"}}, 2, "1 order"},
		"refused": {[]event{ok, {tx: 2, marks: m(4), err: &sqlfence.StaleError{Resource: "r", Token: 4, Current: 5}}}, []entry{row}, 1, ""},
		"by itself": {[]event{ok, {tx: 2, marks: m(5), err: &sqlfence.StaleError{Resource: "r", Token: 5, Current: 5}}},
			[]entry{row}, 1, "1 false"},
		"advance first": {[]event{ok, {tx: 2, marks: m(6), err: fmt.Errorf("behind: %w", holdfast.ErrInvalid)}}, []entry{row}, 1, "1 false"},
		"by nobody": {[]event{ok, {tx: 2, marks: m(5), err: &sqlfence.StaleError{Resource: "r", Token: 5, Current: 7}}},
			[]entry{row}, 1, "1 false"},
	}
	for name, tt := range tests {
		v := (&history{events: tt.events, alone: true}).judge(tt.entries, map[string]int64{"r": tt.sum})
		switch {
		case tt.want == "" && v.violations() != 0:
			t.Errorf("%s: got %v (%s), want no violation", name, v, v.example)
		case tt.want != "" && (v.violations() != 1 || !strings.Contains(v.String(), tt.want)):
			t.Errorf("%s: got %v (%s), want %s", name, v, v.example, tt.want)
		}
	}
}
