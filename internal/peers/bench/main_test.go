package main

import (
	"context"
	"io"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

func newTestTarget(t testing.TB) *target {
	t.Helper()
	target := newTarget(servertest.Redis(t).Addr(), 0)
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

// brief is a plan that measures every table with few goroutines for a moment.
func brief(parts ...string) plan {
	return plan{
		parts: parts, rivals: rivals, takers: takers, sizes: []int{4}, processes: 2, locks: []int{100},
		rounds: 1, duration: 100 * time.Millisecond, idling: 100 * time.Millisecond, settle: 50 * time.Millisecond,
		holding: 300 * time.Millisecond, pool: 16, bulk: bulkPlan{
			scenes: sceneNames(), loads: []int{50}, stopLoads: []int{50}, stops: []time.Duration{10 * time.Millisecond},
			hangs: []time.Duration{200 * time.Millisecond}, ttls: []time.Duration{time.Second}, usedUp: 200 * time.Millisecond,
			messages: 100, lead: 200 * time.Millisecond, tail: 350 * time.Millisecond, tries: 1,
		},
	}
}

// measured returns the tables of a plan.
func measured(t *testing.T, p plan) []table {
	t.Helper()
	servertest.Redis(t) // or there is nothing to measure on
	p.json = filepath.Join(t.TempDir(), "new", "report.json")
	if err := run(t.Context(), io.Discard, p); err != nil {
		t.Fatal(err)
	}
	r, err := read(p.json)
	if err != nil {
		t.Fatal(err)
	}
	return r.Tables
}

func TestAcquireAndReleaseAreTwoCommands(t *testing.T) {
	target := newTestTarget(t)
	for _, r := range soloists[:2] {
		t.Run(r.name, func(t *testing.T) {
			w, err := r.open(target)
			if err != nil {
				t.Fatal(err)
			}
			once := func() {
				if err := cycle(t.Context(), w, "k"); err != nil {
					t.Error(err)
				}
			}
			once() // teaches the server the scripts
			n := sent(t, target, r.sends, func() {
				for range 10 {
					once()
				}
			})
			if n != 20 {
				t.Errorf("10 cycles: got %d commands, want 20", n)
			}
			if n := target.rdb.Exists(t.Context(), "k").Val(); n != 0 {
				t.Error("the key is still there after the release")
			}
			if err := w.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A contender that does not exclude others, or reports success where it has not, measures nothing.
func TestSoloistsFailWhereTheKeyIsHeld(t *testing.T) {
	target := newTestTarget(t)
	for _, r := range soloists {
		t.Run(r.name, func(t *testing.T) {
			for _, key := range []string{"held", "rueidislock:0:held"} { // one of the peers has a prefix
				if err := target.rdb.Set(t.Context(), key, "somebody else", time.Minute).Err(); err != nil {
					t.Fatal(err)
				}
			}
			w, err := r.open(target)
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // for those that wait
			defer cancel()
			if err := cycle(ctx, w, "held"); err == nil {
				t.Error("a cycle on a held key succeeded")
			}
			for _, key := range []string{"held", "rueidislock:0:held"} {
				if v := target.rdb.Get(t.Context(), key).Val(); v != "somebody else" {
					t.Errorf("the holder's key %q became %q", key, v)
				}
			}
		})
	}
}

func TestMedianAndQuantile(t *testing.T) {
	if got := median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median of three: got %v, want 2", got)
	}
	if got := median([]float64{4, 1, 2, 3}); got != 2.5 {
		t.Errorf("median of four: got %v, want 2.5", got)
	}
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v of 1 to 100: got %v, want %v", q, got, want)
		}
	}
	if got := quantile(hundred[:1], 0.99); got != 1 {
		t.Errorf("quantile of one: got %v, want 1", got)
	}
	if got := quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("quantile of none: got %v, want not a number", got)
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
