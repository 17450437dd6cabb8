// Package history records what several processes see of locks and claims on real Redis servers under faults, and has
// github.com/anishathalye/porcupine judge whether it could have happened one call after the other.
//
// The workers are child processes of the test, so that they can be stopped and killed in the middle of anything. Each
// writes into a journal before and after every call; all stamps are of the one monotonic clock of the machine.
//
// What is judged, each in a file of its own:
//
//   - mutex: no two hold a lock while both count themselves as holding
//   - fence: tokens rise, and a register that refuses older tokens loses no update
//   - reentry: holders with one re-entry id hold a lock together, and nobody else does beside them
//   - claim: a tick goes to one claimant
//   - progress: calls that take several keys at a time in any order have them in the end, and who stands leads; mutex and
//     fence judge each key
//   - permit: nobody is inside together with more than its own limit allows
//   - shared: readers are together, a writer is alone, and its token is larger than all before
//
// The wall clocks of the servers are stepped as well, see [Step] for what holds then.
//
// A call whose outcome nobody can know may have taken effect at any time after it began, or never.
//
// Locks, elections and claims that are broken in one point each run through the same worlds and the same models, which must find
// them wrong, or the models would prove nothing.
//
// In a build with the tag holdfast_trace, what the scripts write of a world of one server is held against their specification,
// see package trace in internal/model.
//
// In the normal run each history takes some seconds. make soak goes on: it takes this package, the simulations, the
// model of the scripts and the histories of the fence in turns, with fresh seeds. SEED repeats the faults and the calls
// of one world, of which the processes and the servers still make their own schedule.
package history
