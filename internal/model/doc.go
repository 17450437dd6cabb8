// Package model is the protocol between Lockers and Redis as a state machine
// that is small enough to be searched, with its messages in any order.
//
// [Server] does what the Lua scripts of core do; a test of core makes the same
// random calls to both and compares. [World] adds what is around it: processes
// that acquire, wait, renew, extend, hand over, release, give up and die as
// core's Go code has it, a network that delays, loses and reorders, machines
// that are suspended and clocks that are set. [Search] visits all worlds that a
// [Scenario] can reach and stops at the first that breaks a promise, with the
// shortest way there, which [Scenario.Explain] tells step by step. [Walk] goes
// further, at random.
//
// A tenure has a limit: how many may have the lock while it does. With one of 1
// it is the lock as it is. Where several have it together, a [Session] tells who
// they are; its rules are older than the scripts that are to follow them, and no
// test of core compares the two yet.
//
// A search that finds nothing proves little by itself. So each rule of the
// protocol is a [Rule] that a world can be built without, and the tests show
// that the search finds what goes wrong then.
//
// Package trace, in a folder of this one, is the other half: the specification of the scripts in their own units, against which
// what the running code did is held.
//
// # Limits
//
// Time is a few ticks, clocks run at one rate, and margins are none. Redis
// answers no errors, and loses data only where a scenario says so; a hold that a
// loss or somebody's DEL has ended counts no more until Redis confirms it. A
// process is after one lock, with one call at a time; calls that queue within
// it are one hold after the other. The deadline of a hold is tried out at every
// step of a process that runs, so that nothing is said of how soon its context
// ends.
package model
