package main

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// history is what a lock's fence remembers.
type history struct {
	Last int64 `json:"last"` // the largest token that was issued
	// Live is the token of the latest hold until that hold is released. If the lock is free nevertheless, the lease expired,
	// and the next hold will count this one as lost.
	Live   int64   `json:"live,omitempty"`
	Since  int64   `json:"since"` // from this token on, it is known how each hold ended
	Lost   []int64 `json:"lost,omitempty"`
	LeftMS int64   `json:"remembered_ms"`
}

// newHistory parses a fence: "last live since lost...", followed by s if several might hold the lock, and by w if somebody
// might be waiting. It returns nil if there is no fence, or if the text is not one.
func newHistory(fence string, left time.Duration) *history {
	var all []int64
	for text := range strings.FieldsSeq(strings.TrimSuffix(strings.TrimSuffix(fence, " w"), " s")) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > 1<<53 {
			return nil
		}
		all = append(all, n)
	}
	if len(all) < 3 {
		return nil
	}
	return &history{Last: all[0], Live: all[1], Since: all[2], Lost: all[3:], LeftMS: max(0, left.Milliseconds())}
}

// tokenTime returns when a token was issued, by the clock of Redis. A token is that clock in µs, unless many were issued at
// once or the clock was set back.
func tokenTime(token int64) string {
	return time.UnixMicro(token).UTC().Format("2006-01-02 15:04:05")
}

// noLimit is the limit that readers have in Redis.
const noLimit = 1 << 20

// waiter is a place in line.
type waiter struct {
	Label string `json:"label,omitempty"`
	// Shared marks a reader. Limit is how many holders a waiter for a permit accepts, itself included. A waiter that wants to
	// be alone has neither.
	Shared bool  `json:"shared,omitempty"`
	Limit  int64 `json:"limit,omitempty"`
	// Share is the name of WithShare: waiters of several names take turns by name.
	Share string `json:"share,omitempty"`
	// Told says that Redis wakes the waiter when its turn comes. Otherwise the waiter polls.
	Told bool `json:"told"`
	// Gone says that the waiter has given no sign for too long, and will be passed over.
	Gone bool `json:"gone,omitempty"`
}

// places returns the ids of members of a line, and how many of them say only that waiters have shares, which is at most one. A
// member is "share", a space, the arrival in 16 digits, and the id; on one of several masters it is the id.
func places(members []string) (ids []string, marks int) {
	for _, m := range members {
		if m == "" {
			marks++
		} else if _, rest, ok := strings.Cut(m, " "); ok && len(rest) > 16 {
			ids = append(ids, rest[16:])
		} else {
			ids = append(ids, m)
		}
	}
	return ids, marks
}

// newWaiter makes a waiter of an id in line and of its entry: "expiry at lease life block limit weight:share counted inbox",
// with the expiry in ms by the clock of Redis.
func newWaiter(id, entry string, now time.Time) waiter {
	label, _ := ownLabel(id)
	fields := strings.Fields(entry)
	if len(fields) < 2 {
		return waiter{Label: label, Gone: true}
	}
	expiry, err := strconv.ParseInt(fields[0], 10, 64)
	w := waiter{Label: label, Told: fields[len(fields)-1] != "-", Gone: err != nil || now.UnixMilli() >= expiry}
	if len(fields) == 9 { // the masters of package redlock keep no limit
		w.Shared, w.Limit = limitOf(fields[5])
		_, share, _ := strings.Cut(fields[6], ":")
		w.Share, _ = url.QueryUnescape(share)
	}
	return w
}

// limitOf parses the limit of an owner. It returns 0 for an owner that is alone, and for a reader.
func limitOf(text string) (shared bool, limit int64) {
	switch n, _ := strconv.ParseInt(text, 10, 64); {
	case n == noLimit:
		return true, 0
	case n > 1:
		return false, n
	}
	return false, 0
}

// member is one of several that hold a lock together, by the same re-entry id or by a limit.
type member struct {
	Label  string `json:"label,omitempty"`
	LeftMS int64  `json:"time_left_ms"`
	Shared bool   `json:"shared,omitempty"` // a reader
	Limit  int64  `json:"limit,omitempty"`  // how many it lets in, itself included
	Token  int64  `json:"token,omitempty"`
	id     string // of the owner
}

// newMembers makes members of the hash beside a lock. It returns nil if the hash is not about value, or if it is empty.
func newMembers(entry map[string]string, value string, now time.Time) (all []member) {
	if value == "" || entry["of"] != value {
		return nil
	}
	for field, text := range entry {
		owner, ok := strings.CutPrefix(field, "@")
		until, rest, _ := strings.Cut(text, " ")
		ms, err := strconv.ParseInt(until, 10, 64)
		if !ok || err != nil || ms <= now.UnixMilli() {
			continue
		}
		label, _ := ownLabel(owner)
		m := member{Label: label, LeftMS: ms - now.UnixMilli(), id: owner}
		limit, token, _ := strings.Cut(rest, " ") // the token is 0 with a re-entry id
		m.Shared, m.Limit = limitOf(limit)
		m.Token, _ = strconv.ParseInt(token, 10, 64)
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b member) int {
		return cmp.Or(strings.Compare(a.Label, b.Label), cmp.Compare(a.LeftMS, b.LeftMS), cmp.Compare(a.Token, b.Token))
	})
	return all
}
