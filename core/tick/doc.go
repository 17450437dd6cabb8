// Package tick gives work that is due at a certain time, its tick, to one of the replicas that claim it, however short the work
// is and however much their clocks differ.
//
//	won, err := tick.Claim(ctx, locker, "report", noon)
//	if won {
//		report()
//	}
//
// With a lock alone, a replica whose clock is behind could acquire it once the work is over, and do the work again. Claim
// raises the latest tick that Redis remembers for a name, so later ticks shut out earlier ones, and there is nothing to
// release. Work that must not overlap with that of the next tick needs a lock too.
//
// [Claim] asks at once. A [Clock] first waits until the tick has come by the clock of Redis. A [Runner] is the rest of a scheduler
// on many replicas but its timers: it claims a tick, does the work under a lock, and stops.
//
// # Guarantees
//
//   - Each tick of a name is granted at most once.
//   - An answer that is lost costs no tick: all requests of one call are one claim.
//   - With an error nothing is granted, and the work must not be done.
//
// # Limits
//
// A claimant that crashes, or gets no answer at all, has used up the tick. Redis can grant a tick again only if it lost data,
// or if its clock passed the tick by the whole window of [WithWindow] and was set back. With several masters there is no common
// clock, and a claimant that is paused and then fails may keep the tick from everybody.
//
// # Errors
//
// [ErrWindow], [ErrLate] from a Clock, and those of package holdfast: ErrUnavailable, also if nobody can know whether this call
// got the tick, ErrClosed and ErrInvalid.
//
// # Keys, commands and ACL
//
// A name follows the rules for a lock's key, behind the Locker's prefix, and is independent of a lock of that name. Its latest
// tick is in {name}:~mark, which expires. The commands are EVALSHA, EVAL, GET, SET, PTTL and TIME.
package tick
