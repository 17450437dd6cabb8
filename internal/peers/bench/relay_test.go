package main

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The upper end depends on what else the machine does, and is told only.
func TestRelayAddsItsDelay(t *testing.T) {
	near := newTestTarget(t)
	r, err := startRelay(t.Context(), near.addr, farther)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	far := newTarget(r.addr, 0)
	defer far.close()
	trips := func(rdb *redis.Client) (all []time.Duration) {
		for range 300 {
			began := time.Now()
			if err := rdb.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all
	}
	trips(near.rdb)
	trips(far.rdb) // warm
	without, with := trips(near.rdb), trips(far.rdb)
	if least := with[0]; least < farther {
		t.Errorf("a round trip took %v, want %v at least", least, farther)
	}
	t.Logf("%v added to a median of %v", with[150]-without[150], without[150])
	if added := with[150] - without[150]; added > 900*time.Microsecond {
		t.Logf("more than 0.9 ms: this machine is busy, or the relay is slow")
	}
}

// What many connections send at once arrives whole and in order, both ways at a time, also more than a socket takes at once.
func TestRelayLosesNothing(t *testing.T) {
	near := newTestTarget(t)
	r, err := startRelay(t.Context(), near.addr, farther)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	far := newTarget(r.addr, 16)
	defer far.close()
	big := strings.Repeat("0123456789abcdef", 1<<15)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			pipe := far.rdb.Pipeline()
			var got []*redis.StringCmd
			for range 20 {
				got = append(got, pipe.Echo(t.Context(), big), pipe.Echo(t.Context(), "small"))
			}
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Error(err)
				return
			}
			for i, g := range got {
				if want := []string{big, "small"}[i%2]; g.Val() != want {
					t.Errorf("answer %d has %d bytes, want %d", i, len(g.Val()), len(want))
				}
			}
		})
	}
	wg.Wait()
}

// A connection that the client closes is closed at the server too.
func TestRelayPassesOnTheEnd(t *testing.T) {
	near := newTestTarget(t)
	r, err := startRelay(t.Context(), near.addr, farther)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	open := func() int { return strings.Count(near.rdb.ClientList(t.Context()).Val(), "name=relayed") }
	far := redis.NewClient(&redis.Options{Addr: r.addr, ClientName: "relayed"})
	if err := far.Ping(t.Context()).Err(); err != nil || open() != 1 {
		t.Fatalf("got %v and %d connections, want one", err, open())
	}
	if err := far.Close(); err != nil {
		t.Error(err)
	}
	for until := time.Now().Add(10 * time.Second); open() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the server still has the connection")
		}
	}
}
