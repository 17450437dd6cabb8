package main

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
)

// tally counts while a scene runs. Customers count their answers, and the hooks of the Lockers count the waits.
type tally struct {
	began    time.Time
	answers  atomic.Int64
	bought   atomic.Int64
	refused  atomic.Int64
	waits    atomic.Int64
	lost     atomic.Int64       // locks
	products map[string]*counts // by name; the map does not change
	keys     map[string]*counts // the same counts by lock key
}

type counts struct {
	waited  atomic.Int64 // how many found the lock held at first
	longest atomic.Int64 // the longest time until a lock was acquired, in ns
	busy    atomic.Int64 // answers 409 and 503
}

func newTally(prefix string, products []string) *tally {
	t := &tally{began: time.Now(), products: map[string]*counts{}, keys: map[string]*counts{}}
	for _, p := range products {
		c := &counts{}
		t.products[p] = c
		t.keys[prefix+holdfast.Key("product", p)] = c
	}
	return t
}

// trace returns the hooks for every Locker. Metrics would be connected the same way.
func (t *tally) trace() *holdfast.Trace {
	return &holdfast.Trace{
		Waiting: func(e holdfast.Event) {
			t.waits.Add(1)
			if c := t.keys[e.Key]; c != nil {
				c.waited.Add(1)
			}
		},
		Acquired: func(e holdfast.Event) {
			if c := t.keys[e.Key]; c != nil {
				raise(&c.longest, int64(e.Elapsed))
			}
		},
		Ended: func(e holdfast.Event) {
			if e.Lost {
				t.lost.Add(1)
			}
		},
	}
}

func raise(n *atomic.Int64, to int64) {
	for {
		old := n.Load()
		if to <= old || n.CompareAndSwap(old, to) {
			return
		}
	}
}

func (t *tally) busy(product string) { t.products[product].busy.Add(1) }

func (t *tally) answered(a *shop.Answer) {
	t.answers.Add(1)
	switch a.Verdict {
	case shop.Bought:
		t.bought.Add(1)
	case shop.Refused:
		t.refused.Add(1)
	}
}
