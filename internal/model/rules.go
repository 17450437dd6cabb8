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
	WaitingIsMarked       // in the fence, so that a script that finds no mark need not look
	StrayIsForgotten      // a grant to nobody is undone at once

	// Limits. Those above also hold where several have the lock.
	LimitCountsItself    // the one who names it is among those it allows
	LeastLimitCounts     // of all inside and the one that asks
	ReadersAreMany       // more than any limit allows: one tenure may be that of many
	CapIsLowered         // by one that enters with a smaller limit
	CapIsRecounted       // when the last one with the least limit leaves
	NextIsALowerBound    // of the ends of all leases inside
	DeadMakeRoom         // a client that would be refused has the dead taken out first
	DeadAreLost          // and recorded as that
	KeyOutlivesEntries   // the lock lasts as long as the longest lease inside
	KeyIsLeftToOthers    // only the last one out frees it
	RenewComparesSession // an entry counts only where the hash is about the lock's value
	SessionBeginsEmpty   // nothing of an old hash is taken over
	SessionLossesCount   // what is left in it was lost
	SessionOutlivesKey   // so that this can be seen
	SessionOutlivesFence // which says of all others in its range that they were released
	SessionIsMarked      // in the fence, so that a script that finds no mark need not look
	MutexEndsSession     // before it draws a token, with which the fence outlives the hash
	SinceNeverFalls      // losses need not come in the order of tokens
	ReleaseAsksFence     // an owner that is not inside may have been released before
	ReleaseIsRemembered  // also where the hold was longer than the life of the fence
	ReleaseNamesItsToken // another one was not what the release is about
	SharedAreNotLive     // the hash names those inside, not the fence
	ReleaseServesAll     // that have room
	EntrantServes        // those behind it that have room too
	LeaverServes         // it may have been what the others waited for
	NewcomerWaits        // behind one for whom there is no room
	RefusalTellsFirstEnd // a place is free as soon as one lease is over

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
	LimitCountsItself:         "limit counts itself",
	LeastLimitCounts:          "least limit counts",
	ReadersAreMany:            "readers are many",
	CapIsLowered:              "cap is lowered",
	CapIsRecounted:            "cap is recounted",
	NextIsALowerBound:         "next is a lower bound",
	DeadMakeRoom:              "dead make room",
	DeadAreLost:               "dead are lost",
	KeyOutlivesEntries:        "key outlives entries",
	KeyIsLeftToOthers:         "key is left to others",
	RenewComparesSession:      "renew compares session",
	SessionBeginsEmpty:        "session begins empty",
	SessionLossesCount:        "session losses count",
	SessionOutlivesKey:        "session outlives key",
	SessionOutlivesFence:      "session outlives fence",
	SessionIsMarked:           "session is marked",
	MutexEndsSession:          "mutex ends session",
	SinceNeverFalls:           "since never falls",
	ReleaseAsksFence:          "release asks fence",
	ReleaseIsRemembered:       "release is remembered",
	ReleaseNamesItsToken:      "release names its token",
	SharedAreNotLive:          "shared are not live",
	ReleaseServesAll:          "release serves all",
	EntrantServes:             "entrant serves",
	LeaverServes:              "leaver serves",
	NewcomerWaits:             "newcomer waits",
	RefusalTellsFirstEnd:      "refusal tells first end",
}

func (r Rule) String() string { return ruleNames[r] }

// Breach is a promise that was broken.
type Breach string

// The promises.
const (
	Kept         Breach = ""
	Overlap      Breach = "more hold the lock than one of them allows"
	Overrun      Breach = "a holder counts on a lease that Redis does not keep"
	TokenOrder   Breach = "a token is not larger than those before it"
	WrongAnswer  Breach = "a release was told wrong how it ended"
	Interference Breach = "a command of one tenure changed the hold of another"
	Leak         Breach = "Redis has a tenure that was forgotten"
	Stray        Breach = "a grant to nobody was heard of and is not undone"
	Silent       Breach = "a grant went to one who had been silent for too long"
	Unfair       Breach = "the lock passed one who waited longer"
	Stuck        Breach = "there was room for longer than a look takes, while somebody waited"
	Idle         Breach = "a script left the first in line outside, for whom there was room"
	Header       Breach = "what is told of a session in short is not true of its leases"
	Crowd        Breach = "Redis let in more than one of them allows"
	KeyEnds      Breach = "the lock ends before a lease inside"
)
