package model

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

// limit is how many worlds are visited of a scenario. Those that have more have up to a few million.
const limit = 100_000

func TestProtocolKeepsItsPromises(t *testing.T) {
	n := limit
	if raced {
		n /= 20
	}
	for i, sc := range slices.Concat(scenarios, limited) {
		n := n
		if i >= len(scenarios) {
			n /= 2 // there are more of these
		}
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
			search(t, sc, n)
		})
	}
}

func search(t *testing.T, sc *Scenario, n int) {
	t.Helper()
	begin := time.Now()
	r := Search(sc, n)
	if r.Breach != Kept {
		t.Errorf("%s:\n%s", r.Breach, sc.Explain(r.Trace))
	}
	scope := "all there are"
	if !r.Whole {
		scope = "up to " + strconv.Itoa(r.Depth) + " steps"
	}
	t.Logf("%d worlds, %s, in %v", r.States, scope, time.Since(begin).Round(time.Millisecond))
}

// The search finds what each rule is there for. What else is wrong before that does not count: where Redis ends a lease
// that somebody counts on, it goes on until two hold the lock.
func TestEveryRuleIsNeeded(t *testing.T) {
	rows := []struct {
		rule     Rule
		scenario string
		breach   Breach
	}{
		{OwnerNamesOneTenure, "late release", Overlap},
		{RenewNeverShortens, "late renewal", Overlap},
		{AcquireNeverShortens, "late renewal", Overlap},
		{TaintedLeavesTombstone, "late acquire", Leak},
		{TombstoneBarsLock, "late acquire", Leak},
		{TombstoneBarsLine, "late leave", Leak},
		{ForgetFreesItsOwn, "late release", Interference},
		{FenceRemembersLosses, "late release", WrongAnswer},
		{ResentAcquireGetsItsToken, "late answer", WrongAnswer},
		{KnownUntilForgotten, "late grant", WrongAnswer},
		{LateAnswerChangesNoToken, "late answer", WrongAnswer},

		{TokensFollowTheClock, "short fence", TokenOrder},
		{TokensFollowTheLast, "late grant", TokenOrder},
		{BlocksAreReserved, "block", TokenOrder},

		{LeaseCountsFromSending, "late renewal", Overlap},
		{RenewalFromSending, "late renewal", Overlap},
		{GrantCountsFromLook, "line", Overlap},
		{LookIsComparedToClock, "forward", Overlap},
		{GrantIsNewerThanLook, "back", Overlap},
		{WallClockCounts, "nap", Overlap},

		{DeadArePruned, "line", Silent},
		{FreeLockGoesToTheLine, "line", Unfair},
		{TryWaitsItsTurn, "jump", Unfair},
		{LookKeepsThePlace, "line", Unfair},
		{GrantLeavesTheLine, "late leave", Leak},
		{ForgetLeavesTheLine, "late leave", Leak},
		{WaiterLooks, "line", Stuck},
		{WaitingIsMarked, "line", Idle},
		{StrayIsForgotten, "late leave", Stray},

		{LimitCountsItself, "places", Crowd},
		{LimitCountsItself, "places", Overlap},
		{LeastLimitCounts, "mixed", Overlap},
		{ReadersAreMany, "reader among places", Overlap},
		{CapIsLowered, "mixed", Header},
		{CapIsLowered, "mixed", Overlap},
		{CapIsRecounted, "mixed", Header},
		{NextIsALowerBound, "places", Header},
		{DeadMakeRoom, "line for places", Idle},
		{DeadAreLost, "late release beside another", WrongAnswer},
		{KeyOutlivesEntries, "places", KeyEnds},
		{KeyIsLeftToOthers, "mutex among places", Overlap},
		{AcquireNeverShortens, "late look of a place", Overlap},
		{RenewNeverShortens, "late renewal of a place", Overlap},
		{TaintedLeavesTombstone, "late acquire of a place", Leak},
		{OwnerNamesOneTenure, "late release of a place", Overlap},
		{RenewComparesSession, "deleted, renewed", Overlap},
		{SessionBeginsEmpty, "deleted place", Header},
		{SessionBeginsEmpty, "deleted for a foreign client", Leak},
		{SessionLossesCount, "deleted place", WrongAnswer},
		{SessionOutlivesKey, "deleted place", WrongAnswer},
		{ReleaseAsksFence, "late release beside another", WrongAnswer},
		{ReleaseNamesItsToken, "deleted place", WrongAnswer},
		{SharedAreNotLive, "late release beside another", WrongAnswer},
		{ReleaseServesAll, "readers", Idle},
		{EntrantServes, "foreign", Idle},
		{LeaverServes, "writer", Idle},
		{NewcomerWaits, "writer", Unfair},
		{RefusalTellsFirstEnd, "first end", Stuck},
		{SessionOutlivesFence, "short fence of places", WrongAnswer},
		{SessionIsMarked, "short fence and mutex", WrongAnswer},
		{MutexEndsSession, "short fence and mutex", WrongAnswer},
	}
	// The first takes too many losses, the second breaks no promise; see limit_test.go.
	tested := map[Rule]bool{Whole: true, SinceNeverFalls: true, ReleaseIsRemembered: true}
	for _, row := range rows {
		tested[row.rule] = true
		sc := *find(t, row.scenario)
		sc.Params.Without = row.rule
		sc.Only = row.breach // something else may come first
		r := Search(&sc, limit)
		if r.Breach != row.breach {
			t.Errorf("without %q, %s: %q after %d worlds, want %q\n%s",
				row.rule, sc.Name, r.Breach, r.States, row.breach, sc.Explain(r.Trace))
			continue
		}
		t.Logf("without %q, %s: %s, after %d steps and %d worlds", row.rule, sc.Name, r.Breach, len(r.Trace), r.States)
		trace := sc.Explain(r.Trace)
		if !strings.HasSuffix(trace, "=> "+string(row.breach)+"\n") {
			t.Errorf("its explanation ends elsewhere:\n%s", trace)
		}
		if testing.Verbose() {
			t.Log("\n" + trace)
		}
	}
	for rule := range Rules {
		if !tested[rule] {
			t.Errorf("no test goes without %q", rule)
		}
	}
}

func find(t *testing.T, name string) *Scenario {
	for _, sc := range slices.Concat(scenarios, limited) {
		if sc.Name == name {
			return sc
		}
	}
	t.Fatalf("no scenario %q", name)
	return nil
}

func TestRandomWalks(t *testing.T) {
	n := 8_000
	if raced {
		n /= 10
	}
	for _, sc := range everything {
		walk(t, sc, 1, n)
	}
}

func walk(t *testing.T, sc *Scenario, seed uint64, n int) {
	t.Helper()
	if r := Walk(sc, seed, n, 120); r.Breach != Kept {
		t.Fatalf("SEED=%d, %s: %s\n%s", seed, sc.Name, r.Breach, sc.Explain(r.Trace))
	}
}

// Walks find most of what the search finds, so that what they do not find means something.
func TestRandomWalksFindBrokenRules(t *testing.T) {
	if raced {
		t.Skip("it is about the walks, and takes ten times as long")
	}
	for _, rule := range []Rule{
		OwnerNamesOneTenure, RenewNeverShortens, TaintedLeavesTombstone, ForgetFreesItsOwn, FenceRemembersLosses,
		KnownUntilForgotten, BlocksAreReserved, GrantCountsFromLook, DeadArePruned, ForgetLeavesTheLine, WaiterLooks,
		LimitCountsItself, CapIsRecounted, DeadMakeRoom, KeyIsLeftToOthers, SessionLossesCount, ReleaseServesAll, EntrantServes,
	} {
		sc := *everything[1]
		if rule >= LimitCountsItself {
			sc = *everything[2]
		}
		sc.Params.Without = rule
		if r := Walk(&sc, 1, 10_000, 120); r.Breach == Kept {
			t.Errorf("without %q: nothing found in %d steps", rule, r.States)
		}
	}
}

// TestSoak walks on for DURATION (1m by default) from SEED. With five minutes or more it visits all there is before, which takes
// some two.
func TestSoak(t *testing.T) {
	if os.Getenv("HOLDFAST_SOAK") == "" {
		t.Skip("HOLDFAST_SOAK=1 goes on for DURATION, from SEED")
	}
	begin := time.Now()
	duration, err := time.ParseDuration(os.Getenv("DURATION"))
	if err != nil {
		duration = time.Minute
	}
	seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	if err != nil {
		seed = uint64(begin.UnixNano())
	}
	if duration >= 5*time.Minute {
		for _, sc := range slices.Concat(scenarios, limited) {
			t.Run(sc.Name, func(t *testing.T) { search(t, sc, 5_000_000) })
		}
	}
	const batch = 10_000
	n := 0
	for ; time.Since(begin) < duration; n += batch {
		for _, sc := range everything {
			walk(t, sc, seed, batch)
		}
		seed++
	}
	t.Logf("%d walks through each of everything, up to seed %d", n, seed)
}
