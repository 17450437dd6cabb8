package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

func TestWatchDrawsAgainAndOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	s := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	l := newLocker(t, rdb)
	lock := acquire(t, l, "order:1", holdfast.WithLabel("api-1"))
	acquire(t, l, "other", holdfast.WithLabel("api-2"))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr output
	addr := s.Addr()
	a := &app{stdout: &stdout, stderr: &stderr, terminal: true, getenv: func(string) string { return addr }, connect: connect}
	status := make(chan int, 1)
	go func() { status <- a.run(ctx, []string{"watch", "-n", "100ms", "order:*"}) }()
	frames := func() []string { return strings.Split(stdout.String(), clearScreen)[1:] }
	last := func() string {
		all := frames()
		if len(all) == 0 {
			return ""
		}
		return all[len(all)-1]
	}
	until(t, "three frames", func() bool { return len(frames()) >= 3 })
	if f := frames()[0]; !strings.Contains(f, "api-1") || strings.Contains(f, "api-2") || !strings.Contains(f, "order:*: 1 locks, 1 held, 0 waiting") {
		t.Errorf("got %q", f)
	}
	s.SetError("LOADING for a while")
	until(t, "the outage is shown", func() bool { return strings.Contains(last(), "error: LOADING") })
	s.SetError("")
	until(t, "it is over", func() bool { return strings.Contains(last(), "api-1") })
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the release is shown", func() bool { return strings.Contains(last(), "1 locks, 0 held, 0 waiting") })
	cancel()
	if got := <-status; got != 0 || stderr.String() != "" {
		t.Errorf("status %d, %q, want 0 and no word", got, stderr.String())
	}
}

func TestWatchWritesALineOfJSONForEachLook(t *testing.T) {
	s := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	acquire(t, newLocker(t, rdb), "a b", holdfast.WithLabel("me"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr output
	addr := s.Addr()
	a := &app{stdout: &stdout, stderr: &stderr, terminal: true, getenv: func(string) string { return addr }, connect: connect}
	status := make(chan int, 1)
	go func() { status <- a.run(ctx, []string{"watch", "-json", "-n", "100ms"}) }()
	until(t, "two looks", func() bool { return strings.Count(stdout.String(), "\n") >= 2 })
	s.SetError("LOADING for a while")
	until(t, "an outage", func() bool { return strings.Contains(stdout.String(), "LOADING") })
	s.SetError("")
	cancel()
	if got := <-status; got != 0 {
		t.Errorf("status %d: %s", got, stderr.String())
	}
	for i, line := range strings.Split(strings.TrimSpace(stdout.String()), "\n") {
		var frame struct {
			At     time.Time
			Locks  []row
			Errors []string
		}
		if err := json.Unmarshal([]byte(line), &frame); err != nil || frame.At.IsZero() || frame.Locks == nil {
			t.Fatalf("%q: %v", line, err)
		}
		if i == 0 && (len(frame.Locks) != 1 || frame.Locks[0].Label != "me" || frame.Locks[0].Key != "a b") {
			t.Errorf("got %q", line)
		}
	}
}

func TestWatchEndsWhereTheFirstLookFails(t *testing.T) {
	s := miniredis.RunT(t)
	s.RequireAuth("secret")
	if r := play(t, s.Addr(), "watch"); r.status != 69 || !strings.Contains(r.stderr, "NOAUTH") || r.stdout != "" {
		t.Errorf("got %v", r)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no reader") }

func TestWatchEndsWhereNobodyReads(t *testing.T) {
	s := miniredis.RunT(t)
	var stderr output
	addr := s.Addr()
	a := &app{stdout: broken{}, stderr: &stderr, getenv: func(string) string { return addr }, connect: connect}
	for _, args := range [][]string{{"watch", "-n", "100ms"}, {"ls"}, {"ls", "-json"}} {
		if status := a.run(t.Context(), args); status != 69 || !strings.Contains(stderr.String(), "no reader") {
			t.Errorf("%v: status %d, %q", args, status, stderr.String())
		}
	}
}

// window is a frame on a terminal of that size, or in a file for 0, without its control sequences.
func window(all []row, columns, lines int) []string {
	a := &app{terminal: columns > 0, size: func() (int, int) { return max(columns, 20), max(lines, 5) }}
	frame := strings.TrimPrefix(string(a.frame(all, nil, "*")), clearScreen)
	return strings.Split(strings.TrimRight(frame, "\n"), "\n")
}

func TestFramesFitTheTerminal(t *testing.T) {
	token := time.Now().UnixMicro()
	members := []member{{Label: "replica-1", Token: token}, {Label: "replica-2", Token: token + 1}, {Label: "replica-3", Token: token}}
	all := []row{
		{Key: "free", State: free, Token: token},
		{Key: "permits", State: held, Token: token, Holders: 3, Limit: 3, Members: members, Waiting: 2, LeftMS: 11_200, Line: []waiter{{Label: "replica-4"}, {Label: "gone", Gone: true}}},
		{Key: "prices", State: held, Token: token, Holders: 3, Members: members, LeftMS: 11_200},
		{Key: "outbox", State: held, Token: token, Label: "replica-1", LeftMS: 11_200},
		{Key: strings.Repeat("long", 30), State: held, Token: token, Label: "\u00e9\u00e9\u00e9", LeftMS: 11_200},
	}
	at := clock(time.UnixMicro(token), time.Now())
	for _, c := range []struct {
		columns int
		want    []string
	}{
		{0, []string{strings.Repeat("long", 30), "3 of 3: replica-1, replica-2, replica-3", fmt.Sprint(token), at, "2: replica-4\n"}},
		{250, []string{strings.Repeat("long", 30), "3 of 3: replica-1, replica-2, replica-3", fmt.Sprint(token), at, "2: replica-4\n"}},
		{120, []string{"longlonglonglong", "\u2026", "longlonglonglong  held", "3 of 3: replica-1, replica-2, replica-3", at, "2: replica-4\n"}},
		{60, []string{"long\u2026nglonglong  held", "3 of 3: repl", "\u2026  11.2s", "2: replica-4\n"}},
		{40, []string{"lo\u2026glong  held", "3 of 3:\u2026  11.2s", "2: repl\u2026\n"}},
	} {
		lines := window(all, c.columns, 50)
		frame := strings.Join(lines, "\n") + "\n"
		for _, part := range c.want {
			if !strings.Contains(frame, part) {
				t.Errorf("at %d: want %q in\n%s", c.columns, part, frame)
			}
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); c.columns > 0 && n > max(c.columns, 43) {
				t.Errorf("at %d: %d characters in %q", c.columns, n, line)
			}
		}
		if len(lines) != len(all)+3 {
			t.Errorf("at %d: %d lines:\n%s", c.columns, len(lines), frame)
		}
	}
	if f := strings.Join(window(all, 60, 50), "\n"); strings.Contains(f, "TOKEN") || strings.Contains(f, "SINCE") {
		t.Errorf("got\n%s", f)
	}

	// Of many, those that are held or waited for come first.
	for i := range 100 {
		all = append(all, row{Key: fmt.Sprint("free-", i), State: free})
	}
	all = append(all, row{Key: "last", State: free, Waiting: 1})
	for _, lines := range []int{24, 10, 8, 3} {
		f := window(all, 120, lines)
		if len(f) != max(lines-1, 5) || lines > 9 && !strings.HasPrefix(f[len(f)-2], "last ") || !strings.HasPrefix(f[len(f)-1], "and ") {
			t.Errorf("in %d lines:\n%s", lines, strings.Join(f, "\n"))
		}
	}
	if f := window(all, 0, 0); len(f) != len(all)+3 {
		t.Errorf("a file has %d lines, want all", len(f))
	}
}

func TestClockIsADateForWhatIsOld(t *testing.T) {
	now := time.Date(2026, 7, 24, 0, 30, 0, 0, time.Local)
	for since, want := range map[time.Time]string{
		{}:                          "-",
		now.Add(-15 * time.Minute):  "00:15:00",
		now.Add(-45 * time.Minute):  "2026-07-23",
		now.Add(time.Second).UTC():  "00:30:01",
		now.Add(-time.Hour * 10000): "2025-06-02",
	} {
		if got := clock(since, now); got != want {
			t.Errorf("%v: got %s, want %s", since, got, want)
		}
	}
	two := []member{{Token: 8}, {Token: 7}}
	for _, c := range []struct {
		row  row
		want int64
	}{
		{row{State: held, Token: 9}, 9},
		{row{State: held, Token: 9, Holders: 2, Members: two}, 7}, // the first of them
		{row{State: held, Token: 9, Holders: 2}, 0},
		{row{State: held}, 0},
		{row{State: free, Token: 9}, 0},
		{row{State: foreign, Token: 9}, 0},
	} {
		var want time.Time
		if c.want != 0 {
			want = time.UnixMicro(c.want)
		}
		if got := c.row.since(); !got.Equal(want) {
			t.Errorf("%+v: got %v, want %v", c.row, got, want)
		}
	}
}

func TestFramesOfAFileHaveNoControlSequences(t *testing.T) {
	a := &app{}
	var p partial
	for range 20 {
		p.add(errors.New("bad\x1b[2J"))
	}
	f := string(a.frame([]row{{Key: "a\x1bb", State: held, Label: "\x07", Waiting: 2, NoExpiry: true}}, &p, "\x1b"))
	if strings.ContainsAny(f, "\x1b\x07") || strings.Count(f, "error: bad") != maxErrors || !strings.Contains(f, "more errors like these") || !strings.Contains(f, "1 locks, 1 held, 2 waiting") {
		t.Errorf("got %q", f)
	}
}
