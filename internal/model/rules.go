package model

// Rule is one rule of the protocol, to build a world that lacks it.
type Rule uint8

// The rules.
const (
	Whole Rule = iota // nothing is left out

	// Tenures.
	OwnerNamesOneTenure       // an owner id is not used again once a forget was sent
	RenewNeverShortens        // neither do extensions
	AcquireNeverShortens      // one that finds that it has the lock already
	TaintedLeavesTombstone    // a forget does, where an acquire is unanswered
	TombstoneBarsLock         // an acquire that finds one does not take the lock
	TombstoneBarsLine         // nor join the line
	ForgetFreesItsOwn         // and nobody else's lock
	FenceRemembersLosses      // so that a resent release is told what became of the first
	ResentAcquireGetsItsToken // and not a new one
	KnownUntilForgotten       // a released tenure's grant that comes late is not undone beside the release
	LateAnswerChangesNoToken  // what an older acquire got is not what is held

	// Tokens.
	TokensFollowTheClock // a token is at least the time
	TokensFollowTheLast  // and more than the last
	BlocksAreReserved    // those of one tenure come before those of the next

	// Time.
	LeaseCountsFromSending // of an acquire
	RenewalFromSending     // the same for its answer
	GrantCountsFromLook    // not from when it was heard
	LookIsComparedToClock  // more time there than here: look again
	GrantIsNewerThanLook   // or it is an old one
	WallClockCounts        // beside the monotonic one, which stands still in a suspended machine

	// The line.
	DeadArePruned         // a waiter that has not looked for long is not granted the lock
	FreeLockGoesToTheLine // not to the latest client
	TryWaitsItsTurn       // TryAcquire does not jump the line
	LookKeepsThePlace     // in line
	GrantLeavesTheLine    // an owner that was granted the lock is no longer in it
	ForgetLeavesTheLine   // nor who gave up
	WaiterLooks           // without being told
	WaitingIsMarked       // in the fence, so that who finds no mark need not look
	StrayIsForgotten      // a grant to nobody is undone at once

	Rules // how many
)

var ruleNames = [Rules]string{
	Whole:                     "whole",
	OwnerNamesOneTenure:       "owner names one tenure",
	RenewNeverShortens:        "renew never shortens",
	AcquireNeverShortens:      "acquire never shortens",
	TaintedLeavesTombstone:    "tainted leaves tombstone",
	TombstoneBarsLock:         "tombstone bars lock",
	TombstoneBarsLine:         "tombstone bars line",
	ForgetFreesItsOwn:         "forget frees its own",
	FenceRemembersLosses:      "fence remembers losses",
	ResentAcquireGetsItsToken: "resent acquire gets its token",
	KnownUntilForgotten:       "known until forgotten",
	LateAnswerChangesNoToken:  "late answer changes no token",
	TokensFollowTheClock:      "tokens follow the clock",
	TokensFollowTheLast:       "tokens follow the last",
	BlocksAreReserved:         "blocks are reserved",
	LeaseCountsFromSending:    "lease counts from sending",
	RenewalFromSending:        "renewal counts from sending",
	GrantCountsFromLook:       "grant counts from look",
	LookIsComparedToClock:     "look is compared to clock",
	GrantIsNewerThanLook:      "grant is newer than look",
	WallClockCounts:           "wall clock counts",
	DeadArePruned:             "dead are pruned",
	FreeLockGoesToTheLine:     "free lock goes to the line",
	TryWaitsItsTurn:           "try waits its turn",
	LookKeepsThePlace:         "look keeps the place",
	GrantLeavesTheLine:        "grant leaves the line",
	ForgetLeavesTheLine:       "forget leaves the line",
	WaiterLooks:               "waiter looks",
	WaitingIsMarked:           "waiting is marked",
	StrayIsForgotten:          "stray is forgotten",
}

func (r Rule) String() string { return ruleNames[r] }

// Breach is a promise that was broken.
type Breach string

// The promises.
const (
	Kept         Breach = ""
	Overlap      Breach = "two hold the lock"
	Overrun      Breach = "a holder counts on a lease that Redis does not keep"
	TokenOrder   Breach = "a hold began with a token that is not larger than the last one's"
	WrongAnswer  Breach = "a release was told wrong how it ended"
	Interference Breach = "a command of one tenure changed the hold of another"
	Leak         Breach = "Redis has a tenure that was forgotten"
	Stray        Breach = "a grant to nobody was heard of and is not undone"
	Silent       Breach = "a grant went to one who had been silent for too long"
	Unfair       Breach = "the lock passed one who waited longer"
	Stuck        Breach = "the lock stayed free while somebody waited"
)
