// Package holdfast is a distributed lock in Redis for Go services that run on several replicas. Every acquisition carries a
// fencing token, so that a database can refuse the writes of a holder that was paused past its lease.
//
//	locker, err := holdfast.New(rdb)
//	...
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return ship(ctx, id) // one replica at a time; ctx ends if the lock is lost
//	})
//
// Name the function's parameter ctx, so that it shadows the outer one. All of these renew the lease until the lock is released:
//
//	Do           runs a function under a lock: use it where you can
//	DoAll        the same under several locks
//	Lead         elects a leader: runs a function on one replica at a time
//	Acquire      waits for a lock and returns it
//	TryAcquire   the same without waiting
//
// Use one key for one resource everywhere: a Gin route, a task and a cron job that lock Key("order", id) exclude each
// other. Most services set [WithTTL] (how long a crashed holder blocks the others), [WithWait] (how long a caller waits)
// and [WithLabel] (the name of the holder). [WithLimit] lets n calls hold a lock together, [WithShared] any number of readers.
//
// Package redlock keeps locks on several independent masters. Package tick lets one replica do work that is due at a certain
// time.
//
// # Guarantees
//
//   - Mutual exclusion within the lease. While [Lock.Err] returns nil, nobody else holds the lock, or only calls that share
//     it, as long as Redis keeps its data and its clock is not set forward. A holder counts its lease from before it sent the
//     command, and stops relying on it before Redis drops it: see [Lock.Deadline]. Err, Deadline and the Err of
//     [Lock.Context] compare clocks, so they are right at the first instruction after a pause. Done follows as soon as the
//     runtime's timers allow.
//   - Fencing. [Lock.Token] is larger than every token that Redis issued for the key before, across holders, processes and
//     the loss of all data, as long as Redis' clock is not set back. [WithLocalHandover] and core/limits.md name exceptions.
//   - Every call returns by its context's deadline, whatever the client's timeouts are; Do, DoAll and Lead also wait for
//     their function. [New] and [Lock.Release] name exceptions, of 250 ms and 20 ms. A call that fails leaves no lock
//     behind: see [Locker.Acquire].
//   - First come, first served. Waiters stand in a line in Redis. A release grants the lock to the first and notifies it, so
//     nobody polls, see [WithPolling]. But calls of one process go first for 100 ms: see [WithLocalHandover].
//   - An acquire and its release cost two commands together, however many callers wait; a failed try costs one. Renewals
//     travel in pipelines.
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
// in full.
//
// # Errors
//
// Three outcomes stay apart: another holder has the lock, nobody can know, the lock was ours and is gone.
//
//	ErrNotAcquired   another holder has the lock: nothing ran. The error is a *HeldError
//	ErrUnavailable   Redis did not answer, or refused: nothing ran. From Release, and so from Do: the key may
//	                 stay until its lease expires
//	ErrLost          the lock was ours and is gone: the function ran, perhaps alongside another holder, and only
//	                 the fencing token tells the two apart
//	ErrNoProgress    with ErrLost: the work reported no progress, see [WithProgress]
//	ErrClosed        the Locker was shut down: nothing ran, except perhaps Lead's function. With ErrLost: a forced
//	                 Shutdown abandoned the lock
//	ErrSelfDeadlock  the context already holds this lock: nothing ran
//	ErrInvalid       a key, an option or another argument that can never work
//
// Match them with errors.Is. If the context ended a wait, the error matches the context's error too.
//
// # Keys, commands and ACL
//
// A lock is the Redis string K, its key behind the prefix of [WithPrefix]. K has 1 to 512 bytes, without NUL, ":~", "{}", or
// any "}" but the one that ends a hash tag. Its companions begin with {K}:~, or K:~ if K has a hash tag, and are in the
// Cluster slot of K: core/limits.md lists them. Grants are published to <prefix>holdfast:inbox:<random>. An ACL must allow
// the keys, the channels and these commands:
//
//	EVALSHA EVAL MGET GET GETEX GETRANGE SET DEL PTTL PEXPIRE TIME EXISTS        for every lock
//	ZADD ZREM ZRANGE ZRANK ZCARD HGET HSET HDEL PUBSUB PUBLISH SUBSCRIBE PING    to wait in line
//	ZSCORE ZCOUNT ZLEXCOUNT ZREMRANGEBYSCORE                                     for WithShare
//	HMGET HGETALL HLEN                                                           for WithReentryID, WithLimit and WithShared
//	WAIT                                                                         for WithReplicaAcks
//
// Redis 6.2 or later, or Valkey.
package holdfast
