package protocol

import (
	"fmt"
	"testing"
	"time"
)

type list = []any

// What each reader makes of a reply; what it does not know it refuses, whatever is in it. That the scripts reply so is tested in
// core, on miniredis and on real servers.
func TestReaders(t *testing.T) {
	readers := map[string]func(any) (any, bool){
		"acquire": func(v any) (any, bool) { return ReadAcquired(v) },
		"forget":  func(v any) (any, bool) { return ReadForgotten(v) },
		"renew":   func(v any) (any, bool) { return ReadLeft(v) },
		"vote":    func(v any) (any, bool) { return ReadVoted(v) },
		"claim":   func(v any) (any, bool) { return ReadClaimed(v) },
		"tick":    func(v any) (any, bool) { return ReadTicked(v) },
		"inspect": func(v any) (any, bool) { return ReadInspected(v) },
		"grant":   func(v any) (any, bool) { s, _ := v.(string); return ReadGrant(s) },
	}
	n := func(i int) int64 { return int64(i) }
	for _, c := range []struct {
		reader string
		reply  any
		want   any
	}{
		{"acquire", n(70), Acquired{Token: 70}},
		{"acquire", n(-1), Acquired{Undone: true}},
		{"acquire", n(-2), Acquired{Exhausted: true}},
		{"acquire", list{n(0), n(5000), "you", n(2), n(99), "70 70 50 60", n(1)},
			Acquired{Held: true, Left: 5000, Value: "you", Place: 2, Time: 99, Last: 70, Deaf: DeafElsewhere}},
		{"acquire", list{n(0), n(-1), "", n(0), n(99), "70 0 50", n(0)}, Acquired{Held: true, Left: -1, Time: 99, Last: 70, Foreign: true}},
		{"acquire", list{n(0), n(5), "=you", n(0), n(99), "70 0 50 s w", n(0), n(3)}, Acquired{Held: true, Left: 5, Value: "=you", Time: 99, Last: 70, Holders: 3}},
		{"acquire", list{n(0), n(-1), "", n(0), n(99), "", n(2)}, Acquired{Held: true, Left: -1, Time: 99, Deaf: DeafMute}},
		{"forget", n(0), NotHeld}, {"forget", n(1), Released}, {"forget", n(2), Already}, {"forget", n(3), Unknown},
		{"renew", n(0), n(0)}, {"renew", n(15000), n(15000)}, {"renew", n(-1), n(-1)},
		{"vote", list{n(1), n(99), "run", n(70)}, Voted{Code: VoteGranted, N: 70}},
		{"vote", list{n(0), n(99), "", n(70), "you", n(5000)}, Voted{Code: VoteHeld, N: 70, Value: "you", Left: 5000}},
		{"vote", list{n(-5), n(99), "", n(-1)}, Voted{Code: VoteYoung, N: -1}},
		{"claim", n(1), Claimed{Code: ClaimGranted}}, {"claim", n(0), Claimed{}}, {"claim", n(2), Claimed{Code: ClaimOther}},
		{"claim", list{n(-1), n(99)}, Claimed{ClaimEarly, 99}}, {"claim", list{n(-2), n(99)}, Claimed{ClaimLate, 99}},
		{"tick", list{n(1), n(99), ""}, Ticked{Claimed: Claimed{ClaimGranted, 99}}},
		{"tick", list{n(0), n(99), "", n(70), "you"}, Ticked{Claimed: Claimed{ClaimTaken, 99}, Tick: 70, Claimant: "you"}},
		{"tick", list{n(-5), n(99), "run", n(8)}, Ticked{Claimed: Claimed{ClaimYoung, 99}, Young: 8}},
		{"inspect", list{"you", n(5000), n(70), n(2), n(1)}, Inspected{Value: "you", Left: 5000, Token: 70, Waiting: 2, Shares: 1}},
		{"inspect", list{"=you", n(5000), n(70), n(2), n(0), n(3), n(5)}, Inspected{Value: "=you", Left: 5000, Token: 70, Waiting: 2, Holders: 3, Limit: 5}},
		{"inspect", list{"", n(Free), n(70), n(0), n(0)}, Inspected{Left: Free, Token: 70}},
		{"grant", "me\n70\n99\nk\nwith a line", Grant{"me", 70, 99, "k\nwith a line"}},
	} {
		if got, ok := readers[c.reader](c.reply); got != c.want || !ok {
			t.Errorf("%s %v: got %+v, %v, want %+v", c.reader, c.reply, got, ok, c.want)
		}
		// Anything missing, or of another type, makes it unknown.
		all, _ := c.reply.(list)
		for i := range all {
			if c.reader == "vote" && (i == 2 || i > 3) || c.reader == "tick" && i == 2 {
				continue // what is not asked for, or need not be there
			}
			bad := append(list{}, all...)
			bad[i] = 1.5
			if got, ok := readers[c.reader](bad); ok {
				t.Errorf("%s %v: got %+v", c.reader, bad, got)
			}
			if c.reader == "acquire" && i == 7 || c.reader == "inspect" && i == 5 {
				continue // what is behind is there where several may hold it
			}
			if got, ok := readers[c.reader](all[:i]); ok {
				t.Errorf("%s %v: got %+v", c.reader, all[:i], got)
			}
		}
	}
	for name, read := range readers {
		for _, bad := range []any{nil, "", "OK", n(-9), n(9), list{}, list{nil}, list{n(7), n(7), "", n(7), "", n(7), n(7)}, list{n(9), n(9)}, 1.5} {
			known := name == "renew" && (bad == n(9) || bad == n(-9)) || name == "acquire" && bad == n(9)
			if v, isList := bad.(list); isList && name == "vote" && len(v) == 7 {
				known = true // a code that no master has, which the reader leaves to the caller
			}
			if got, ok := read(bad); ok != known {
				t.Errorf("%s %v: got %+v, %v", name, bad, got, ok)
			}
		}
	}
}

func TestPlans(t *testing.T) {
	place := VotePlace("~w", 20*time.Millisecond, "in")
	for got, want := range map[string]string{
		AcquirePlan(15*time.Second, 1, nil): "15000 75000 1",
		AcquirePlan(15*time.Second, 9, &Waiting{First: 3 * time.Second, Weight: 1, Counted: true, Inbox: "in"}): "15000 75000 9 5000 3000 1: 1 in",
		AcquirePlan(time.Second, 1, &Waiting{First: time.Second, Share: "a b", Weight: 3}):                      "1000 61000 1 5000 1000 3:a+b 0 -",
		place: " ~w 5000 20 1 in",
		Proposal{Token: 70, Lease: time.Second, Block: 2, Quarantine: 3 * time.Second, Behind: 4 * time.Microsecond, Passed: 5 * time.Microsecond, Ahead: 6 * time.Microsecond, Started: true, Place: place}.Plan(): "70 1000 61000 2 3000 4 5 6 1" + place,
		TickPlan(70, Window{Ahead: 1000, Behind: 2000, Gap: 3000}, true): "70 1 2 3 1",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	name, n := "me", int64(70)
	names, err := NameKeys("k")
	if err != nil {
		t.Fatal(err)
	}
	_, args := Sustain(nil, &names.Lock, &names.Fence, &names.Gone, &name, time.Second, n, 2)
	if got := fmt.Sprint(args[len(args)-1]); got != "1000 70 2 61000" {
		t.Errorf("sustain: %q", got)
	}
	for _, tainted := range []bool{false, true} {
		s, args := Forget(nil, &names, &name, &n, tainted)
		if got := fmt.Sprint(args[len(args)-2:]); s != ForgetScript || got != map[bool]string{false: "[60000 0]", true: "[60000 60000]"}[tainted] {
			t.Errorf("forget: %s", got)
		}
	}
	for want, got := range map[string]string{"": Admits(1, ""), "3": Admits(3, ""), "1=a+%25%0A": Admits(1, "a %\n")} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
