package page

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestGateClosesWithinAPaymentAndOutsideOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		var mu sync.Mutex
		var log []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, what)
		}
		request := func(name string, before, payment time.Duration) {
			g.enter()
			defer g.leave()
			note(name + " enters")
			time.Sleep(before)
			note(name + " pays")
			g.pay(func() { time.Sleep(payment) })
			note(name + " writes")
		}
		go func() { // begins when nobody pays, and lets the first payment begin but not end
			time.Sleep(time.Second)
			g.close()
			note("closed")
			time.Sleep(time.Hour)
			g.open()
		}()
		go func() {
			time.Sleep(2 * time.Second)
			request("first", time.Second, time.Second)
		}()
		go func() { // in a transaction while the first one pays
			time.Sleep(2500 * time.Millisecond)
			request("second", time.Minute, 0)
		}()
		go func() {
			time.Sleep(10 * time.Second)
			request("third", 0, time.Minute)
		}()
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		mu.Lock()
		if want := []string{"first enters", "second enters", "first pays", "second pays", "closed"}; !slices.Equal(log, want) {
			t.Errorf("got %q, want %q", log, want)
		}
		mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(log) != 10 {
			t.Errorf("got %q, want all to go on after the end", log)
		}
	})
}

func TestOpenEndsACloseThatWaits(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		g := newGate()
		go g.close() // nobody pays
		synctest.Wait()
		g.open()
		synctest.Wait() // the bubble fails if it waits for ever
		g.freeze()
		g.thawed() // what is not closed does not freeze
		g.enter()
		g.leave()
	})
}
