package schedule

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// Walks are all garbage.
func init() { debug.SetGCPercent(1000) }

// Nobody starves and nobody gets more than its part, in random schedules: those from seed 1, or from SEED, as many as
// HOLDFAST_SCHEDULES says. With HOLDFAST_SOAK they go on for DURATION.
func TestSchedulesKeepTheirPromises(t *testing.T) {
	t.Parallel()
	begin, first, n := time.Now(), uint64(1), uint64(4_000)
	if raced {
		n /= 20
	}
	duration := time.Duration(0)
	if s, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		first, n = s, 1
	}
	if os.Getenv("HOLDFAST_SOAK") != "" {
		n = 0
		var err error
		if duration, err = time.ParseDuration(os.Getenv("DURATION")); err != nil {
			duration = time.Minute
		}
		if os.Getenv("SEED") == "" {
			first = uint64(begin.UnixNano()) >> 16
		}
	}
	if s, err := strconv.ParseUint(os.Getenv("HOLDFAST_SCHEDULES"), 10, 64); err == nil {
		n = s
	}

	var all result
	done := uint64(0)
	for ; (done < n || time.Since(begin) < duration) && !t.Failed(); done++ {
		r := walk(first+done, Whole, Kept, nil)
		all.Calls, all.Served = all.Calls+r.Calls, all.Served+r.Served
		all.Passed, all.Ahead, all.Lag = max(all.Passed, r.Passed), max(all.Ahead, r.Ahead), max(all.Lag, r.Lag)
		if r.Breach != Kept {
			t.Errorf("SEED=%d: %s\n%s", first+done, r.Breach, explain(first+done, Whole, Kept))
		}
	}
	t.Logf("%d schedules from seed %d in %v, %d calls, %d let in from the line; of their bounds at most: passed %.2f, ahead %.2f, lag %.2f",
		done, first, time.Since(begin).Round(time.Millisecond), all.Calls, all.Served, all.Passed, all.Ahead, all.Lag)
}

// Each rule is needed: without it the walks, or a schedule made for it, find what goes wrong then, and with it they do not.
func TestEveryRuleIsNeeded(t *testing.T) {
	t.Parallel()
	rows := []struct {
		rule   Rule
		breach Breach
		made   func(Rule) Breach // or else walks
	}{
		{SharesTakeTurns, Unfair, nil},
		{ShareHasTheTag, Unfair, nil},
		{ShareHasTheTag, Starved, thoseWhoGiveUp},
		{LeaversPayNothing, Unfair, nil},
		{LeaversPayNothing, Starved, thoseWhoGiveUp},
		{ClockRuns, Starved, nil},
		{ClockRuns, Starved, heavyUsers},
		{ClockKnowsWeights, Lagging, nil},
		{ClockKeepsFraction, Starved, heavyUsers},
		{FinishIsRemembered, Unfair, nil},
		{FinishIsForgotten, Untidy, nil},
		{NewcomerStartsAtV, Unfair, nil},
		{CrowdStartsLater, Behind, shareAmongCrowd},
		{PlainKeepsClaims, Starved, usersInTurns},
		{PlainKeepsClaims, Starved, nil},
		{EmptyForgetsAll, Untidy, nil},
		{PassedOverMoveUp, Lagging, nil},
		{PassedOverMoveUp, Unfair, back},
		{UnheardArePassed, Idle, nil},
		{UnfitHoldUpAll, Starved, nil},
		{ResendKeepsPlace, Passed, nil},
		{ArrivalsAscend, Passed, nil},
		{DeadAreRemoved, Silent, nil},
		{LeastLimitCounts, Crowded, nil},
		{JoinerMayBeNext, Idle, nil},
	}
	tested := Rule(0)
	for _, row := range rows {
		tested |= row.rule
		if row.made != nil {
			if got := row.made(Whole); got != Kept {
				t.Errorf("with %q: %s", row.rule, got)
			}
			if got := row.made(row.rule); got != row.breach {
				t.Errorf("without %q: %q, want %q", row.rule, got, row.breach)
			}
			continue
		}
		seed := uint64(1)
		for ; seed <= 3000; seed++ {
			if walk(seed, row.rule, row.breach, nil).Breach != Kept {
				break
			}
		}
		if seed > 3000 {
			t.Errorf("without %q: no walk finds that %s", row.rule, row.breach)
		}
		t.Logf("without %q: %s, with seed %d", row.rule, row.breach, seed)
		if testing.Verbose() && testing.Short() {
			t.Log(explain(seed, row.rule, row.breach))
		}
	}
	if tested != ruleEnd-1 {
		t.Errorf("no test goes without %q", (ruleEnd-1)&^tested)
	}
}

// queue is a line of one place, where a service is a tick.
type queue struct {
	Line
	ticks, names int64
	served       map[string]int
	until        map[string]int64 // by when a waiter was let in
}

func newQueue(without Rule) *queue {
	return &queue{Line: Line{Without: without}, served: map[string]int{}, until: map[string]int64{}}
}

// join adds n calls of a share, and returns the name of the last.
func (q *queue) join(share string, weight int64, n int) (owner string) {
	for range n {
		q.names++
		owner = fmt.Sprint(share, " ", q.names)
		q.Join(q.ticks, Waiter{Owner: owner, Share: share, Weight: weight, Limit: 1, Expiry: 1 << 60})
	}
	return owner
}

func always(*Waiter) bool { return true }

func (q *queue) serve(heard func(*Waiter) bool) *Waiter {
	q.ticks++
	w := q.Admit(q.ticks, heard, always)
	if w != nil {
		q.served[w.Share]++
		q.until[w.Owner] = q.ticks
	}
	return w
}

// Four callers of A come in each tick and give up after five, beside 300 patient ones of B.
func (q *queue) giveUp() {
	var quit []string
	for range 2000 {
		for range 4 {
			quit = append(quit, q.join("A", 1, 1))
		}
		if len(quit) > 20 {
			for _, owner := range quit[:4] {
				q.Leave(owner)
			}
			quit = quit[4:]
		}
		if b := q.share("B"); b == nil {
			q.join("B", 1, 300)
		} else {
			q.join("B", 1, 300-len(b.Waiters))
		}
		q.serve(always)
	}
}

func thoseWhoGiveUp(without Rule) Breach {
	q := newQueue(without)
	if q.giveUp(); q.served["A"] < 100 {
		return Starved
	}
	return Kept
}

// 60 users wait, with a share of weight 100 each, and one more comes for each that is let in. A has two calls. With a V of whole
// numbers a rise by 50.4/62 is none.
func heavyUsers(without Rule) Breach {
	q := newQueue(without)
	last := q.join("A", 100, 2)
	for u := range 5000 {
		q.join(fmt.Sprint("user", u), 100, 1)
		if u >= 60 {
			q.serve(always)
		}
	}
	if at := q.until[last]; at == 0 || at > 200 {
		return Starved
	}
	return Kept
}

// A crowd without a share waits. Five users come, each with a share of its own, and whenever the last of them was let in the
// next five.
func usersInTurns(without Rule) Breach {
	w := newWorld(without, Kept, nil)
	w.Now = tick
	add := func(owner, share string) *caller {
		c := &caller{Waiter: Waiter{Owner: owner, Share: share, Weight: 1, Limit: 1}}
		w.acquire(c)
		return c
	}
	inside := add("first", "")
	add("one of a crowd", "")
	for i := range 50 {
		var users []*caller
		for j := range 5 {
			users = append(users, add(fmt.Sprint("user", i, ".", j), fmt.Sprint("share", i, ".", j)))
		}
		for range users {
			w.forget(inside)
			for _, c := range users {
				if c.holds {
					inside = c
				}
			}
			if _, o := w.Find("one of a crowd"); o == nil {
				return w.Breach
			}
		}
	}
	return w.Breach
}

// A crowd without a share waits. The first share to join is next.
func shareAmongCrowd(without Rule) Breach {
	q := newQueue(without)
	q.join("", 1, 10)
	q.serve(always)
	q.join("A", 1, 1)
	if q.serve(always).Share != "A" {
		return Behind
	}
	return Kept
}

// The callers of A cannot be told for 1000 services of B and C, and then they can. Theirs is a third of the next 300.
func back(without Rule) Breach {
	q := newQueue(without)
	for _, share := range []string{"A", "B", "C"} {
		q.join(share, 1, 2000)
	}
	for range 1000 {
		q.serve(func(w *Waiter) bool { return w.Share != "A" })
	}
	for range 300 {
		q.serve(always)
	}
	if q.served["A"] > 102 {
		return Unfair
	}
	return Kept
}

func within(t *testing.T, what string, got, least, most int) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %d, want %d to %d", what, got, least, most)
	}
}

// New users come at random, 1.02 for each that is let in, while A has 20 calls in line. Those add to the users that wait: the last
// call comes after a round for each, of up to 20 users and more.
func TestOldShareGetsItsPartAmongNewOnes(t *testing.T) {
	last := func(without Rule, seed uint64) int {
		r := rand.New(rand.NewPCG(seed, 0))
		q := newQueue(without)
		owner := q.join("A", 1, 20)
		next, user := 0.0, 0
		for q.until[owner] == 0 && q.ticks < 5000 {
			for ; next < float64(q.ticks+1); next += r.ExpFloat64() / 1.02 {
				user++
				q.join(fmt.Sprint("user", user), 1, 1)
			}
			q.serve(always)
		}
		return int(cmp.Or(q.until[owner], q.ticks))
	}
	sum, without := 0, 0
	for seed := range uint64(4) {
		at := last(Whole, seed)
		within(t, "the last of A", at, 20, 700)
		sum, without = sum+at, without+last(ClockRuns, seed)
	}
	within(t, "the last of A, in the mean", sum/4, 20, 400)
	within(t, "the last of A without the clock, in the mean", without/4, 1000, 5000)
	t.Logf("the last of A comes after %d, and without the clock after %d or more", sum/4, without/4)
}

// 100, 10 and 1 callers that come again as soon as they were let in.
func TestSharesOfAnySizeGetEqualParts(t *testing.T) {
	q := newQueue(Whole)
	q.join("A", 1, 100)
	q.join("B", 1, 10)
	single, since, longest := q.join("C", 1, 1), q.ticks, int64(0)
	for range 3000 {
		w := q.serve(always)
		if owner := q.join(w.Share, 1, 1); w.Owner == single {
			longest = max(longest, q.ticks-since-1) // of others, that were let in before
			single, since = owner, q.ticks
		}
	}
	for _, share := range []string{"A", "B", "C"} {
		within(t, share, q.served[share], 990, 1010)
	}
	within(t, "the longest wait of the single caller", int(longest), 0, 2)
}

func TestWeightsArePartsOfAll(t *testing.T) {
	q := newQueue(Whole)
	weights := map[string]int64{"A": 1, "B": 2, "C": 4}
	for _, share := range []string{"A", "B", "C"} {
		q.join(share, weights[share], 30)
	}
	for range 7000 {
		share := q.serve(always).Share
		q.join(share, weights[share], 1)
	}
	for share, weight := range weights {
		within(t, share, q.served[share], int(weight)*980, int(weight)*1020)
	}
}

// Tags that have reached their end leave shares to take turns by arrival.
func TestTagsEnd(t *testing.T) {
	q := newQueue(Whole)
	q.join("A", 1, 3)
	q.join("B", 1, 3)
	q.V = MaxTag - 2*Unit
	for _, s := range q.Shares {
		s.Tag = MaxTag - Unit
	}
	for range 5 {
		q.serve(always)
		for _, s := range q.Shares {
			if s.Tag > MaxTag || q.V > MaxTag {
				t.Errorf("share %s has tag %d, V is %.0f", s.Name, s.Tag, q.V)
			}
		}
	}
	within(t, "A", q.served["A"], 2, 3)
	within(t, "B", q.served["B"], 2, 3)
}
