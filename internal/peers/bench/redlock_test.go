package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
)

func TestRedLockTableHasEveryTaker(t *testing.T) {
	t.Parallel() // most of it is waiting until the servers are old enough
	p := brief("redlock")
	p.duration = 30 * time.Millisecond
	p.takers = slices.DeleteFunc(slices.Clone(takers), func(e takerEntry) bool { return e.name == failFast }) // seconds more
	rows := map[string]int{}
	table := measured(t, p)[0]
	for _, row := range table.Rows {
		name := table.text(row, "")
		rows[name]++
		if !strings.HasPrefix(name, us) {
			continue // a peer that fails is a finding, not a fault of this program
		}
		tries, failed := table.get(row, "tries"), table.get(row, "failed")
		switch stopped := table.text(row, "servers") == "three stopped"; {
		case name != us: // its lease is too short for a busy machine
		case stopped && failed != tries:
			t.Errorf("got %v, want %v failures", row, tries)
		case !stopped && failed > tries/4: // a busy machine lets some answers come too late
			t.Errorf("got %v, want next to no failures", row)
		}
		// Usually two. A server that is silent for a while is asked less, and one that answers late once more.
		if n := table.get(row, "commands"); !(n >= 1 && n <= 4) {
			t.Errorf("got %v, want about 2 commands to each server", row)
		}
	}
	for _, e := range p.takers {
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
				answers <- peers.ErrHeld
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
			lock, err := taker.try(t.Context(), key)
			if (err == nil) != (held <= nodes/2) {
				t.Errorf("%s with %d of %d keys held elsewhere: got %v", e.name, held, nodes, err)
			}
			if err == nil {
				if err := lock.Release(t.Context()); err != nil {
					t.Errorf("%s with %d of %d keys held elsewhere: release: %v", e.name, held, nodes, err)
				}
			}
			if err := taker.close(); err != nil {
				t.Error(err)
			}
		}
	}
}
