package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func (v *viewer) hand(replica, key string) row {
	for _, r := range v.lane(replica).Hands {
		if r.Product == key {
			return r
		}
	}
	v.t.Fatalf("no row for %s", key)
	return row{}
}

// lock is what Redis says of one that is taken by hand.
func (v *viewer) lock(key string) lock {
	return v.picture.Hands[slices.Index(handKeys, key)]
}

// phases is what the replicas say of a lock that is taken by hand.
func (v *viewer) phases(key string) string {
	var all []string
	for _, l := range v.picture.Lanes {
		all = append(all, or(v.hand(l.Name, key).Phase, "-"))
	}
	return strings.Join(all, " ")
}

func (v *viewer) term() term {
	return *(&board{picture: v.picture}).term()
}

func TestLocksTakenByHand(t *testing.T) {
	t.Parallel()
	steady := quick
	steady.lease = time.Minute // a busy machine loses no lock
	steady.look = 20 * time.Millisecond
	v := startShow(t, steady, "", 1, 3).view()
	v.until("all stand for election", func([]entry) bool {
		return v.lock(outbox).Held && v.lock(outbox).Waiting == 2 && strings.Count(v.phases(outbox), "waiting") == 2
	})
	// is waits until the replicas say this of a lock, and Redis that.
	is := func(key, phases string, says lock) {
		t.Helper()
		v.until(fmt.Sprint(key, ": ", phases), func([]entry) bool {
			l := v.lock(key)
			return v.phases(key) == phases && l.Holders == says.Holders && l.Limit == says.Limit && l.Waiting == says.Waiting &&
				l.Holder == says.Holder && l.Held == (says.Holders > 0)
		})
	}
	begin := func(n int, act string) { v.post(fmt.Sprintf("replicas/replica-%d/begin/%s", n, act)) }
	end := func(n int, act string) { v.post(fmt.Sprintf("replicas/replica-%d/end/%s", n, act)) }

	begin(1, "take")
	is(permits, "held - -", lock{Holders: 1, Limit: 2})
	begin(2, "take")
	is(permits, "held held -", lock{Holders: 2, Limit: 2})
	begin(3, "take")
	is(permits, "held held waiting", lock{Holders: 2, Limit: 2, Waiting: 1})
	end(1, "take")
	is(permits, "- held held", lock{Holders: 2, Limit: 2})

	begin(1, "read")
	begin(2, "read")
	is(prices, "held held -", lock{Holders: 2})
	begin(3, "write")
	is(prices, "held held waiting", lock{Holders: 2, Waiting: 1})
	begin(1, "write") // it reads: nothing comes of that
	end(1, "read")
	is(prices, "- held waiting", lock{Holders: 1, Waiting: 1})
	begin(1, "read") // behind the writer
	is(prices, "waiting held waiting", lock{Holders: 1, Waiting: 2})
	end(2, "read")
	is(prices, "waiting - held", lock{Holders: 1, Limit: 1, Holder: "replica-3", Waiting: 1})
	if r := v.hand("replica-1", prices); r.Act != "read" {
		t.Errorf("it waits to %s, want to read", r.Act)
	}
	end(1, "read") // gives its place in line back
	is(prices, "- - held", lock{Holders: 1, Limit: 1, Holder: "replica-3"})

	// Three transfers that would wait in a circle.
	begin(2, "b-c")
	is("account:c", "- held -", lock{Holders: 1, Limit: 1, Holder: "replica-2"})
	begin(1, "a-b")
	is("account:b", "waiting held -", lock{Holders: 1, Limit: 1, Holder: "replica-2", Waiting: 1})
	begin(3, "c-a")
	is("account:a", "held - waiting", lock{Holders: 1, Limit: 1, Holder: "replica-1", Waiting: 1})
	if got := v.phases("account:c"); got != "- held -" {
		t.Errorf("C: %s, want the call that waits for A to hold nothing behind", got)
	}
	end(2, "b-c")
	is("account:b", "held - -", lock{Holders: 1, Limit: 1, Holder: "replica-1"})
	is("account:a", "held - waiting", lock{Holders: 1, Limit: 1, Holder: "replica-1", Waiting: 1})
	end(1, "a-b")
	is("account:a", "- - held", lock{Holders: 1, Limit: 1, Holder: "replica-3"})
	is("account:c", "- - held", lock{Holders: 1, Limit: 1, Holder: "replica-3"})

	first := v.term()
	v.post("replicas/" + first.Name + "/end/lead")
	v.until("it has resigned, and the next one leads", func([]entry) bool {
		return v.term().Name != first.Name && v.picture.Terms[0].Ended == "resigned" && v.lock(outbox).Holder == v.term().Name
	})
	if next := v.term(); next.Token <= first.Token || next.Ended != "" || v.lock(outbox).Token != next.Token || v.picture.Terms[0].Token != first.Token {
		t.Errorf("after %+v got %+v, and of Redis %+v", first, next, v.lock(outbox))
	}
	v.until("it stands again", func([]entry) bool { return v.hand(first.Name, outbox).Phase == "waiting" })
	v.stop()
}

func TestBoardTellsHowATermEnded(t *testing.T) {
	lead := func(b *board, replica string, token int64) {
		b.report(replica, report{What: "acquired", Product: outbox, Token: token, At: token})
	}
	released := func(b *board, text string) {
		b.report("replica-1", report{What: "released", Product: outbox, Token: 7, Text: text})
	}
	pause := func(b *board) { b.become("replica-1", "paused", 0, entry{}) }
	resume := func(b *board) { b.become("replica-1", "running", 0, entry{}) }
	for _, c := range []struct {
		how  string
		ends func(b *board)
	}{
		{"", func(*board) {}},
		{"", func(b *board) { pause(b); resume(b) }},
		{"resigned", func(b *board) { released(b, errResigned.Error()) }},
		{"was killed", func(b *board) { b.become("replica-1", "ended", 0, entry{What: "killed", Text: "killed"}) }},
		{"ended", func(b *board) { b.become("replica-1", "ended", 0, entry{What: "ended", Text: "ended"}) }},
		{"was paused", pause},
		{"lost the lock", func(b *board) {
			b.report("replica-1", report{What: "lost", Product: outbox, Token: 7})
			released(b, "the lock was lost")
		}},
	} {
		b := fleetAtRest().board
		lead(b, "replica-1", 7)
		c.ends(b)
		lead(b, "replica-2", 8)
		resume(b)
		want := []term{{"replica-1", 7, 7, c.how}, {"replica-2", 8, 8, ""}}
		if got := b.picture.Terms; !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		lead(b, "replica-1", 9)
		if got := b.picture.Terms; len(got) != 2 || got[0] != want[1] || got[1].Token != 9 {
			t.Errorf("%q: got %+v, want the last two", c.how, got)
		}
	}
	b := fleetAtRest().board // the replica tells of the end later than its successor
	lead(b, "replica-1", 7)
	lead(b, "replica-2", 8)
	released(b, errResigned.Error())
	if got := b.picture.Terms; got[0].Ended != "resigned" || got[1].Ended != "" {
		t.Errorf("got %+v", got)
	}
}

// What the buttons begin, and the number that the page says in words, is in both files.
func TestPageKnowsTheActs(t *testing.T) {
	for act := range acts {
		if !strings.Contains(page, " "+act+`: "`) && !strings.Contains(page, "{"+act+`: "`) && !strings.Contains(page, `"`+act+`": "`) {
			t.Errorf("the page has no button for %s", act)
		}
	}
	for _, key := range handKeys {
		if !strings.Contains(page, `"`+key+`"`) {
			t.Errorf("the page has no panel for %s", key)
		}
	}
	for _, text := range []string{"WithLimit(%d)", "of %d permits"} {
		if text = fmt.Sprintf(text, permitsAtOnce); !strings.Contains(page, text) {
			t.Errorf("the page does not say %q", text)
		}
	}
}
