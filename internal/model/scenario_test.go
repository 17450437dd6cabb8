package model

// In ticks: a lease is two, that of a grant one. Waiters look every tick, and their places live for two.
var usual = Params{Lease: 2, First: 1, Entry: 2, Fence: Forever, Block: 1, PerTick: 100}

func with(change func(*Params)) Params {
	p := usual
	change(&p)
	return p
}

// What processes do: acquire, waiting in line, and more.
var (
	keeps  = Program{Tenures: 1}                             // keeps the lock
	once   = Program{Tenures: 1, Releases: true, Forgets: 1} // releases it
	try    = Program{Tenures: 1, Try: true}                  // does not wait, and keeps it
	resend = Program{Tenures: 1, Releases: true, Forgets: 2}
	twice  = Program{Tenures: 2, Releases: true, Forgets: 2}
	leave  = Program{Tenures: 1, GivesUp: true, Forgets: 1}
)

// scenarios are parts of what can happen, each around some of the rules. All together would be too much to search.
var scenarios = []*Scenario{
	// A release that arrives late, after a tenure, or two.
	{Name: "late release", Params: usual, Held: true, Late: 1, Programs: []Program{twice, try}},
	// Renewals, extensions and acquires in any order.
	{Name: "late renewal", Params: usual, Extend: 3, Late: 1, Programs: []Program{{Tenures: 1, Renews: 1, Extends: 1}, try}},
	// An acquire that is cancelled, and arrives whenever.
	{Name: "late acquire", Params: usual, Late: 1, Programs: []Program{
		{Tenures: 1, GivesUp: true, Releases: true, Forgets: 1},
		{Tenures: 1, Try: true, Releases: true, Forgets: 1},
	}},
	// One process that hears late of what it did.
	{Name: "late answer", Params: usual, Late: 3, Programs: []Program{resend}},
	// The lock goes from one to the next, and the grant is as slow as it likes.
	{Name: "late grant", Params: usual, Held: true, Programs: []Program{once, once}},
	// A waiter gives up, and its forget gets lost.
	{Name: "late leave", Params: usual, Held: true, Late: 1, Programs: []Program{once, leave}},
	// Three in line; one dies, one message gets lost.
	{Name: "line", Params: usual, Held: true, Prompt: true, Losses: 1, Deaths: 1, Programs: []Program{once, once, once}},
	// One in line may give up while another tries.
	{Name: "jump", Params: usual, Held: true, Prompt: true, Losses: 1, Programs: []Program{once, {Tenures: 1, GivesUp: true, Releases: true, Forgets: 1}, try}},
	// The same without hurry.
	{Name: "slow jump", Params: usual, Held: true, Losses: 1, Programs: []Program{once, keeps, try}},
	// Inboxes lose their connections.
	{Name: "deaf", Params: usual, Held: true, Prompt: true, Deaths: 1, Closed: true, Deafs: 1, Programs: []Program{once, once, once}},
	// A machine is suspended.
	{Name: "nap", Params: usual, Held: true, Naps: 1, Programs: []Program{once, once}},
	// Redis' clock is set forward past the lease of one who died. Looks are prompt: if all that a waiter knew were
	// older than the step, nothing could tell it of that.
	{Name: "forward", Params: with(func(p *Params) { p.Entry = 5 }), Held: true, Prompt: true, Deaths: 1, Forwards: 1, Step: 3, Programs: []Program{keeps, keeps, keeps}},
	// Redis' clock is set back.
	{Name: "back", Params: usual, Held: true, Prompt: true, Backs: 1, Step: 2, Programs: []Program{once, keeps, keeps}},
	// The fence is soon forgotten.
	{Name: "short fence", Params: with(func(p *Params) { p.Fence = 1 }), Held: true, Prompt: true, Programs: []Program{twice, keeps}},
	// A tenure with two tokens is handed over within its process.
	{Name: "block", Params: with(func(p *Params) { p.Block = 2 }), Held: true, Late: 1, Programs: []Program{{Tenures: 1, HandsOn: true, Releases: true, Forgets: 1}, once}},
}

// everything is too much to search, and walked at random.
var everything = []*Scenario{
	{
		Name: "three", Params: with(func(p *Params) { p.Block = 2 }), Extend: 3,
		Late: 3, Losses: 3, Deaths: 1, Naps: 1, Deafs: 1, Backs: 1, Step: 2,
		Programs: []Program{busy(false), busy(false), busy(true)},
	},
	{
		Name: "two", Params: with(func(p *Params) { p.Block = 2 }), Extend: 3, Late: 3, Losses: 1,
		Programs: []Program{busy(false), busy(false)},
	},
	{
		Name: "three with limits", Params: with(func(p *Params) { p.Memory = 3 }), Extend: 3,
		Late: 3, Losses: 3, Deaths: 1, Naps: 1, Deafs: 1, Backs: 1, Step: 2, Foreigns: 2,
		Programs: []Program{busy(false).to(2), busy(false).to(3), busy(true).to(2)},
	},
	{
		Name: "two readers and a writer", Params: usual, Extend: 3, Late: 3, Losses: 2, Deaths: 1, Foreigns: 1, Dels: 1,
		Programs: []Program{busy(false).to(Unlimited), busy(false).to(Unlimited), busy(false)},
	},
	{
		Name: "three places", Params: usual, Late: 2, Losses: 2, Deaths: 1, Dels: 2,
		Programs: []Program{busy(false).to(2), busy(false).to(2), busy(false).to(2)},
	},
}

func busy(try bool) Program {
	return Program{
		Tenures: 2, Try: try, GivesUp: true, Renews: 2, Extends: 1, HandsOn: true, Releases: true, Forgets: 3,
	}
}
