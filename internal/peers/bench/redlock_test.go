package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

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
	servertest.Redis(t)
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
