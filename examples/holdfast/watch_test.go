package main

import (
	"context"
	"errors"
	"strings"
	"testing"

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

func TestWatchEndsWhereTheFirstLookFails(t *testing.T) {
	s := miniredis.RunT(t)
	s.RequireAuth("secret")
	if r := play(t, s.Addr(), "watch"); r.status != 1 || !strings.Contains(r.stderr, "NOAUTH") || r.stdout != "" {
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
		if status := a.run(t.Context(), args); status != 1 || !strings.Contains(stderr.String(), "no reader") {
			t.Errorf("%v: status %d, %q", args, status, stderr.String())
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
	if strings.ContainsAny(f, "\x1b\x07") || strings.Count(f, "error: bad") != maxErrors || !strings.Contains(f, "more of the like") || !strings.Contains(f, "1 locks, 1 held, 2 waiting") {
		t.Errorf("got %q", f)
	}
}
