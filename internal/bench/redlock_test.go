package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestRedLockTableHasEveryTaker(t *testing.T) {
	requireServer(t)
	var out bytes.Buffer
	some := takers[:4] // the last would take seconds more
	p := plan{parts: []string{several}, takers: some, rounds: 1, duration: 30 * time.Millisecond, pool: 16}
	if err := run(t.Context(), &out, p); err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for _, row := range readTables(out.String()) {
		if strings.HasPrefix(row["servers"], "--") {
			continue
		}
		rows[row[""]]++
		if !strings.HasPrefix(row[""], "holdfast") {
			continue // a peer that fails is a finding, not a fault of this program
		}
		failed, least := "0", 1.8 // a late one that refused need not be asked to release
		switch row["servers"] {
		case "three stopped":
			failed = row["tries"]
		case "two stopped":
			least = 1 // after some silence they are not asked any more
		}
		if n, err := strconv.ParseFloat(row["commands"], 64); err != nil || n < least || n > 2 || row["failed"] != failed {
			t.Errorf("got %v, want %s failures, and 2 commands to each server", row, failed)
		}
	}
	for _, e := range some {
		want := 0
		for _, s := range situations {
			if !e.healthy || s.healthy() {
				want += len(s.sizes)
			}
		}
		if rows[e.name] != want {
			t.Errorf("%s: got %d rows, want %d", e.name, rows[e.name], want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestMajorityEndsAsSoonAsItIsKnown(t *testing.T) {
	for _, c := range []struct {
		answers string
		reads   int
		ok      bool
	}{
		{"++++", 3, true}, {"++-++", 4, true}, {"-++-+", 5, true}, {"---", 3, false}, {"+-+--", 5, false},
	} {
		answers := make(chan error, 5)
		for _, a := range c.answers {
			if a == '+' {
				answers <- nil
			} else {
				answers <- errHeld
			}
		}
		err := majority(answers, 5)
		if got := len(c.answers) - len(answers); (err == nil) != c.ok || got != c.reads {
			t.Errorf("%s: got %v after %d answers, want success %v after %d", c.answers, err, got, c.ok, c.reads)
		}
	}
}

// A taker that does not exclude others, or reports success where it has not, measures nothing.
func TestTakersFailWhereMostKeysAreHeld(t *testing.T) {
	requireServer(t)
	c, err := startCluster(t.Context(), nodes, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	for held := range nodes {
		for i, e := range takers {
			if e.healthy {
				continue
			}
			key := fmt.Sprint("k:", held, ":", i)
			for _, target := range c.targets[:held] {
				target.rdb.Set(t.Context(), key, "somebody else", time.Minute)
			}
			taker, err := e.open(c.addrs(situation{late: time.Millisecond}), 0)
			if err != nil {
				t.Fatal(err)
			}
			give, err := taker.take(t.Context(), key)
			if (err == nil) != (held <= nodes/2) {
				t.Errorf("%s with %d of %d keys held elsewhere: got %v", e.name, held, nodes, err)
			}
			if err == nil {
				if err := give(t.Context()); err != nil {
					t.Errorf("%s with %d of %d keys held elsewhere: release: %v", e.name, held, nodes, err)
				}
			}
			if err := taker.close(); err != nil {
				t.Error(err)
			}
		}
	}
}
