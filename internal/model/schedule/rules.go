package schedule

import "strings"

// Rule is a set of rules of the discipline, to build a line that lacks them.
type Rule uint32

// The rules.
const (
	SharesTakeTurns    Rule = 1 << iota // and not waiters, whatever their share
	ShareHasTheTag                      // not each waiter its own, from its join
	LeaversPayNothing                   // but those that are let in
	ClockRuns                           // beside the start tags
	ClockKnowsWeights                   // it rises by a part of the step, not of Unit
	ClockKeepsFraction                  // or many heavy shares stop it
	FinishIsRemembered                  // of a share that waits no more
	FinishIsForgotten                   // once V is there
	NewcomerStartsAtV                   // and makes up for nothing
	CrowdStartsLater                    // waiters without a share, when the first share joins
	PlainKeepsClaims                    // tags are forgotten for a crowd alone only where nothing depends on them
	EmptyForgetsAll                     // a line in which nobody waits
	PassedOverMoveUp                    // a share that cannot be told saves up nothing
	UnheardArePassed                    // and do not hold up the line
	UnfitHoldUpAll                      // or those that want the lock alone wait for ever
	ResendKeepsPlace
	ArrivalsAscend // within a share, also when the clock is set back
	DeadAreRemoved // a waiter that has not looked for long is not let in
	LeastLimitCounts
	JoinerMayBeNext // at once, where its tag is below that of one that does not fit

	ruleEnd
)

// Whole is a line without none.
const Whole Rule = 0

var ruleNames = [...]string{
	"shares take turns", "share has the tag", "leavers pay nothing", "clock runs", "clock knows weights", "clock keeps fraction",
	"finish is remembered", "finish is forgotten", "newcomer starts at V", "crowd starts later", "plain keeps claims",
	"empty forgets all", "passed over move up", "unheard are passed", "unfit hold up all", "resend keeps place",
	"arrivals ascend", "dead are removed", "least limit counts", "joiner may be next",
}

func (r Rule) String() string {
	var names []string
	for i, name := range ruleNames {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Breach is a promise that was broken.
type Breach string

// The promises.
const (
	Kept    Breach = ""
	Crowded Breach = "more are inside than one of them allows"
	Twice   Breach = "one was let in that did not wait"
	Silent  Breach = "one was let in that had been silent for too long"
	Passed  Breach = "one was let in before an earlier one of its share"
	Idle    Breach = "there is room for the next, and it is left outside"
	Starved Breach = "a waiter is passed by more than the bound"
	Unfair  Breach = "a share got more than one that waited beside it"
	Behind  Breach = "the first share to join waits for a crowd without shares"
	Lagging Breach = "a tag is farther from V than its bound"
	Untidy  Breach = "what is remembered is not what the discipline needs"
)
