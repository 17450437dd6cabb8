package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// requireServer skips a test where no server is installed, and fails it where the run was told that one is.
func requireServer(t testing.TB) {
	t.Helper()
	_, err := findServer()
	switch {
	case err == nil:
	case os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1":
		t.Fatalf("HOLDFAST_REQUIRE_SERVERS=1: %v", err)
	default:
		t.Skip(err)
	}
}

func newTestTarget(t testing.TB) *target {
	t.Helper()
	requireServer(t)
	s, err := startServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	target := newTarget(s.addr, 0)
	t.Cleanup(func() { _ = target.close() })
	return target
}

// sent runs act and returns how many commands of sends it made.
func sent(t *testing.T, target *target, sends []string, act func()) int64 {
	t.Helper()
	if err := target.resetStats(t.Context()); err != nil {
		t.Fatal(err)
	}
	act()
	stats, err := target.stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, _ := stats.split(sends)
	return n.calls
}

func TestAcquireAndReleaseAreTwoCommands(t *testing.T) {
	target := newTestTarget(t)
	for _, e := range contenders {
		t.Run(e.name, func(t *testing.T) {
			c, err := e.open(target)
			if err != nil {
				t.Fatal(err)
			}
			cycle := func() {
				if err := c.cycle(t.Context(), "k"); err != nil {
					t.Error(err)
				}
			}
			cycle() // teaches the server the scripts
			n := sent(t, target, e.sends, func() {
				for range 10 {
					cycle()
				}
			})
			if n != 20 {
				t.Errorf("10 cycles: got %d commands, want 20", n)
			}
			if n := target.rdb.Exists(t.Context(), "k").Val(); n != 0 {
				t.Error("the key is still there after the release")
			}
			if err := c.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRefusedTryAcquireIsOneCommand(t *testing.T) {
	target := newTestTarget(t)
	c, err := openHoldfast(target)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	locker := c.(ours).locker
	lock, err := locker.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	n := sent(t, target, []string{"evalsha", "eval"}, func() {
		if _, err := locker.TryAcquire(t.Context(), "k", holdfast.WithTTL(time.Second)); !errors.Is(err, holdfast.ErrNotAcquired) {
			t.Errorf("got %v, want ErrNotAcquired", err)
		}
	})
	if n != 1 {
		t.Errorf("got %d commands, want 1", n)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A contender that does not exclude others, or reports success where it has not, measures nothing.
func TestContendersFailWhereTheKeyIsHeld(t *testing.T) {
	target := newTestTarget(t)
	for _, e := range contenders {
		t.Run(e.name, func(t *testing.T) {
			c, err := e.open(target)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			if err := target.rdb.Set(t.Context(), "held", "somebody else", time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // for those that wait
			defer cancel()
			if err := c.cycle(ctx, "held"); err == nil {
				t.Error("a cycle on a held key succeeded")
			}
			if v := target.rdb.Get(t.Context(), "held").Val(); v != "somebody else" {
				t.Errorf("the holder's key became %q", v)
			}
		})
	}
}

func TestReportHasAllContenders(t *testing.T) {
	requireServer(t)
	var out bytes.Buffer
	p := plan{parts: []string{uncontended}, rounds: 2, duration: time.Millisecond, pool: 64}
	if err := run(t.Context(), &out, p); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if got := strings.Count(line, "|"); got != len(columns)+1 {
			t.Errorf("%d bars in a line of %d columns: %s", got, len(columns), line)
		}
		lines++
	}
	if want := 2 + len(contenders)*len(goroutines); lines != want {
		t.Errorf("got %d lines, want %d:\n%s", lines, want, &out)
	}
}

func TestMeasurementCountsEveryCommandOfEveryCycle(t *testing.T) {
	target := newTestTarget(t)
	p := plan{rounds: 2, duration: time.Millisecond}
	rows, err := p.run(t.Context(), target, contenders)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if len(r.samples) != p.rounds || len(r.base) != p.rounds {
			t.Errorf("%s: got %d samples and %d to compare with, want %d", r.name, len(r.samples), len(r.base), p.rounds)
		}
		for _, s := range r.samples {
			if s.commands != 2 {
				t.Errorf("%s with %d goroutines: got %v commands per cycle, want 2", r.name, r.goroutines, s.commands)
			}
		}
	}
}

func TestMedianAndQuantile(t *testing.T) {
	if got := median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median of three: got %v, want 2", got)
	}
	if got := median([]float64{4, 1, 2, 3}); got != 2.5 {
		t.Errorf("median of four: got %v, want 2.5", got)
	}
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v of 1 to 100: got %d, want %d", q, got, want)
		}
	}
	if got := quantile(hundred[:1], 0.99); got != 1 {
		t.Errorf("quantile of one: got %d, want 1", got)
	}
}

func TestParseStats(t *testing.T) {
	info := "# Commandstats\r\n" +
		"cmdstat_evalsha:calls=10,usec=200,usec_per_call=20.00,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_set:calls=5,usec=10,usec_per_call=2.00,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_config|resetstat:calls=1,usec=10,usec_per_call=10.00,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_client|setinfo:calls=2,usec=5,usec_per_call=2.50,rejected_calls=0,failed_calls=0\r\n"
	s, err := parseStats(info)
	if err != nil {
		t.Fatal(err)
	}
	sent, inside := s.split([]string{"evalsha", "eval"})
	if want := (tally{10, 200}); sent != want {
		t.Errorf("sent: got %+v, want %+v", sent, want)
	}
	if want := (tally{5, 10}); inside != want {
		t.Errorf("inside: got %+v, want %+v", inside, want)
	}
	if _, err := parseStats("cmdstat_get:calls=many"); err == nil {
		t.Error("a malformed line passed")
	}
}

func TestServerIsToldFromAnotherOnItsPort(t *testing.T) {
	requireServer(t)
	s, err := startServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	late := server{addr: s.addr, cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
	if err := late.ask(); err == nil {
		t.Error("another server's answer passed")
	}
}
