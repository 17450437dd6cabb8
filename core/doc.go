// Package holdfast is a distributed lock in Redis for Go services that run on several replicas. Every acquisition carries a
// fencing token, so that a database can refuse the writes of a holder that was paused past its lease.
//
//	locker, err := holdfast.New(rdb)
//	...
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return ship(ctx, id) // one replica at a time; ctx ends if the lock is lost
//	})
//
// Use [Locker.Do] where you can, and name its function's parameter ctx, so that it shadows the outer one. [Locker.Acquire]
// waits for the lock and returns it; [Locker.TryAcquire] does not wait. [Locker.DoAll] holds several locks at once.
// [Locker.Lead] elects a leader: it runs a function on one replica at a time. All of them renew the lease until the lock is
// released. [WithLimit] lets n calls hold a lock together, [WithShared] any number of readers. [NewRedLock] keeps locks on
// several independent masters.
//
// [Locker.Claim] is for work that is due at a certain time, its tick, such as the run of a cron job. Of all replicas that
// claim a tick, at most one gets it, however short the work is and however much their clocks differ.
//
// Use one key for one resource everywhere: a Gin route, a task and a cron job that lock Key("order", id) exclude each
// other. Most services set [WithTTL] (how long a crashed holder blocks the others), [WithWait] (how long a caller waits)
// and [WithLabel] (the name of the holder).
//
// # Guarantees
//
//   - Mutual exclusion within the lease. While [Lock.Err] returns nil, nobody else holds the lock, unless an option lets
//     calls share it, as long as Redis keeps its data and its clock is not set forward. A holder counts its lease from
//     before it sent the command, and stops relying on it before Redis drops it: earlier by max(25 ms, ttl/20), and by
//     another 2 ms + ttl/100 for clock drift. Err, [Lock.Deadline] and the Err of [Lock.Context] compare clocks, so they are
//     right at the first instruction after a pause. Done follows as soon as the runtime's timers allow.
//   - Fencing. [Lock.Token] is larger than every token that Redis issued for the key before, across holders, processes and
//     the loss of all data, as long as Redis' clock is not set back. It is max(last+1, Redis' time in µs), a hybrid logical
//     clock, and stays below 2^53. [WithLocalHandover] and core/limits.md name exceptions.
//   - Three outcomes stay apart: another holder has the lock, the lock was ours and is gone, nobody can know. See Errors.
//   - Every call returns by its context's deadline, whatever the client's timeouts are. [New] and [Lock.Release] name two
//     exceptions, of 250 ms and 20 ms; Do, DoAll and Lead also wait for their function. A cancelled call leaves no lock
//     behind, unless Redis stalls for longer than a lease: see [Locker.Acquire].
//   - First come, first served: waiters stand in a line that Redis keeps. A release grants the lock to the first waiter and
//     notifies it, so nobody polls, provided that Redis lets waiters subscribe. But calls of one process first hand the lock
//     to each other, without a command, for 100 ms by default: see [WithLocalHandover].
//   - An acquire and its release cost two commands together, however many callers wait; a failed try costs one. Renewals
//     travel in pipelines, and when many callers want locks at once, one command takes or frees several.
//   - The key is the one that other libraries use, SET key value NX PX ttl with a random value, so that they and holdfast
//     exclude each other.
//   - Everything that holdfast writes to Redis expires.
//
// # Limits
//
// A lease can expire under a handler that is paused or ignores its context. No lock service can prevent that. Work that
// must not be done twice has to be fenced by its token where it is stored: see package sqlfence.
//
// Redis can forget a lock: in a failover with asynchronous replication, in a restart, by FLUSHALL or an eviction, or when its
// clock is set forward. Then two clients may hold the lock until the first one's next renewal, at most a third of a lease
// later. The second has the larger token. [WithReplicaAcks] makes that rarer in a failover, and only there.
//
// A lock covers what runs under its context until Release, not goroutines that outlive it. core/limits.md has the limits
// in full: also of tokens, of the line, and of managed servers.
//
// # Errors
//
// Match the errors with errors.Is, and those that have a type with errors.As:
//
//	ErrNotAcquired   another holder has the lock: nothing ran. A *HeldError says who, and what is left of its lease
//	ErrUnavailable   Redis did not answer, or refused: nothing ran. With a *QuarantineError, most masters started too
//	                 recently to vote. From Release, and so from Do: the key may stay until its lease expires
//	ErrLost          the lease expired, or another holder has the key: what ran may have overlapped with that holder
//	ErrClosed        the Locker was shut down: nothing ran, except perhaps Lead's function. From Lock.Err: a forced
//	                 Shutdown abandoned the lock
//	ErrSelfDeadlock  the context already holds this lock: nothing ran
//	ErrTick          from Claim: the tick is too far from Redis' time: nothing was claimed
//	ErrInvalid       a key, an option or another argument that can never work
//
// If the context ended a wait, the error matches the context's error too. Do joins its function's error with the release's.
//
// # Keys, commands and ACL
//
// A lock is the Redis string K, which is its key with the prefix of [WithPrefix] in front. Its companions are {K}:~fence,
// {K}:~line, {K}:~wait, {K}:~gone:<owner>, {K}:~held and {K}:~entry, and {K}:~mark for a claim, all in the Cluster slot of K.
// If K has a hash tag they are K:~fence and so on, and if K is {x}, {x}:~:~fence. K has 1 to 512 bytes, without NUL, ":~",
// "{}", or any "}" but the one that ends a hash tag. Grants are published to <prefix>holdfast:inbox:<random>, one channel for
// each Locker. An ACL must allow these keys and channels, and these commands:
//
//	EVALSHA EVAL MGET GET GETEX SET DEL PTTL PEXPIRE TIME LINDEX        for every lock
//	LLEN LPOS LREM RPUSH HGET HSET HDEL PUBSUB PUBLISH SUBSCRIBE PING   to wait in line
//	HMGET HGETALL                                                       for WithReentryID, WithLimit and WithShared
//	HLEN EXISTS                                                         for WithLimit and WithShared
//	WAIT                                                                for WithReplicaAcks
//	EXISTS INFO LINSERT                                                 for NewRedLock
//
// Redis 6.2 or later, or Valkey.
package holdfast
