// Package redlock keeps locks on several independent Redis or Valkey masters. The client that holds a lock on most of them
// holds it, so that a lock survives the loss of a minority. The algorithm is that of the Redis documentation, "Distributed
// Locks with Redis".
//
//	locker, err := redlock.New([]*redis.Client{a, b, c})
//	...
//	err = locker.Do(ctx, "report", func(ctx context.Context) error { ... })
//
// Three or five masters are usual: four survive the loss of one, just like three.
//
// # Guarantees
//
// Those of package holdfast, as long as most masters keep their data, with these differences:
//
//   - Tokens rise from holder to holder, whichever masters granted them, and after losses of memory in all but the cases that
//     README.md names.
//   - A master that has just started does not vote for a while, because it may have forgotten a lock: see [WithQuarantine].
//   - Waiters are served first come, first served only as far as the masters agree on the order of arrival. One call per
//     process and key waits in line, even without [holdfast.WithLocalHandover].
//   - Each master sees two commands for an acquisition and its release.
//   - While most masters hang, Acquire fails after the length of a lease, and TryAcquire, Release and Extend return after a
//     node timeout, see [WithNodeTimeout].
//   - A claimant that dies, or is paused and then fails, may keep a tick from everybody. Nobody gets it twice.
//
// # Limits
//
// The masters must share nothing: no replication among them, and no proxy through which two of the clients could reach one
// server. Do not lock the same key through [holdfast.New] on one of them at the same time: a call that waits there would lose
// its place in line. Keep the clocks of the masters within 1 s of each other.
//
// A master forgets without a restart after a FLUSHALL, an eviction or a restored backup, when its clock is set forward, and
// when a replica that keeps running is promoted behind the same address. If the masters that still have a lock are no longer
// a majority, two clients can hold it until the first one's next renewal. README.md answers the critics of the algorithm.
//
// [holdfast.WithReentryID], [holdfast.WithReplicaAcks], [holdfast.WithLimit] and [holdfast.WithShared] are refused, with a
// [holdfast.ErrInvalid]. An ACL must also allow INFO.
package redlock
