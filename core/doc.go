// Package holdfast is a lock in Redis for Go services that run on several replicas. Every acquisition carries a
// fencing token, so that a database can refuse a holder that was paused past its lease.
//
//	locker, err := holdfast.New(rdb)
//	...
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return ship(ctx, id) // one replica at a time; ctx ends if the lock is lost
//	})
//
// Use [Locker.Do] where you can: name its function's parameter ctx, so that it shadows the outer one. [Locker.Acquire]
// returns the lock itself and waits until its context ends; [Locker.TryAcquire] does not wait. All three renew the lease
// until the lock is released. [WithLimit] lets n calls hold the lock together, and [WithShared] any number, as readers.
// [Locker.DoAll] holds several locks, and [Locker.Lead] runs a function on one replica at a time. [Locker.Claim] is for what
// is due at a time, such as a cron job. That time is called a tick: of all replicas that claim it at most one is granted it,
// however short the work is and however much their clocks differ. [NewRedLock] takes locks on independent masters.
//
// Use one name for one resource everywhere: a Gin route, a task and a job that lock Key("order", id) exclude each other. Most
// services set [WithTTL] (how long a crashed holder blocks the others), [WithWait] (how long a caller waits) and [WithLabel]
// (the name of the holder).
//
// # Guarantees
//
//   - Mutual exclusion within the lease. While [Lock.Err] is nil nobody else has the lock, as long as Redis keeps its data
//     and its clock is not set forward. A holder's deadline counts from before the command was sent, and lies before the end
//     of the lease in Redis, by max(25 ms, ttl/20) plus, for clock drift, 2 ms + ttl/100. Err, [Lock.Deadline] and the Err
//     of [Lock.Context] compare clocks, so they are right at the first instruction after a pause; Done follows as soon as
//     the runtime's timers allow.
//   - Fencing. [Lock.Token] is larger than every token that Redis issued before for the key, across holders, processes and
//     loss of all data, as long as its clock is not set back; core/limits.md and [WithLocalHandover] name exceptions. It is
//     max(last+1, the server's time in µs), a hybrid logical clock, and below 2^53.
//   - Three outcomes stay apart: somebody else holds the lock, it was ours and is gone, nobody can know. See Errors.
//   - Every call returns by its context's deadline, whatever the client's timeouts are; [New] and [Lock.Release] name two
//     exceptions, and Do, DoAll and Lead wait for their function. A cancelled call leaves no lock, unless Redis stands still
//     for longer than a lease: see [Locker.Acquire].
//   - First come, first served, among processes and within one. Waiters stand in a line that Redis keeps. A release
//     grants the lock to the first of them and tells it so: nobody polls, where Redis lets them subscribe.
//   - An acquire and its release take two commands together, however many wait; next to none between the calls of one
//     process, see [WithLocalHandover]. A try that fails takes one. Renewals travel in pipelines, and where many callers
//     want locks at once, one command takes or frees several. Fencing adds no round trip.
//   - The key is the one of other libraries, SET key value NX PX ttl with a random value: they and holdfast exclude each
//     other on it.
//   - Everything holdfast writes expires by itself.
//
// # Limits
//
// A lease can end under a handler that is paused or does not look at its context. No lock service can prevent that: work
// that must not be done twice has to be fenced where it is stored, by the token. See package sqlfence.
//
// A Redis that loses data may forget a lock: by a failover with asynchronous replication, a restart, FLUSHALL or eviction,
// or with a clock that is set forward. Then two may hold the lock until the first one's next renewal, a third of a lease
// later at most; the second has the larger token. [WithReplicaAcks] makes that rarer at a failover, and helps with none of the
// others.
//
// A lock covers what runs under its context until Release, not goroutines that outlive it. The file core/limits.md
// has the limits in full: of tokens, of the line, of servers that let nobody subscribe, and of a lock that is dropped.
//
// # Errors
//
// They are matched with errors.Is, those with a type with errors.As:
//
//	ErrNotAcquired   somebody else holds the lock: nothing ran; a *HeldError tells who, and what its lease has left
//	ErrUnavailable   Redis did not answer, or refused: nothing ran; from Release, and so from Do: the key may stay for its lease.
//	                 With a *QuarantineError most masters have started too recently to vote
//	ErrLost          the lease is over, or the key is another's: what ran may have run beside another holder
//	ErrClosed        the Locker was shut down: nothing ran, but Lead's function may have; from Lock.Err: a Shutdown gave it up
//	ErrSelfDeadlock  the context has this very lock: nothing ran
//	ErrTick          from Claim: a tick outside of the window: nothing was claimed
//	ErrInvalid       a key, an option or another argument that can never work
//
// Where the context ended a wait, the error matches the context's too. Do joins the error of its function with that of the
// release.
//
// # Keys, commands and ACL
//
// A lock named K is the string K. Its companions are {K}:~fence, {K}:~line, {K}:~wait, {K}:~gone:<owner>, {K}:~held, {K}:~entry
// and, of a claim, {K}:~mark, in the same Cluster slot; K:~fence and so on where K has a hash tag, and {x}:~:~fence where K is
// {x}. K has 1 to 512 bytes, no NUL, no ":~", no "{}", and no "}" but the one that ends a hash tag. Grants are published to
// holdfast:inbox:<random>, one channel for each Locker, behind the prefix of [WithPrefix]. An ACL must allow these keys, the
// channels (&holdfast:inbox:*, behind that prefix), and
//
//	EVALSHA EVAL MGET GET GETEX SET DEL PTTL PEXPIRE TIME
//	LINDEX LLEN LPOS LREM RPUSH HGET HSET HDEL PUBSUB PUBLISH SUBSCRIBE PING   to wait in line
//	HMGET HGETALL                                                              for WithReentryID, WithLimit and WithShared
//	HLEN EXISTS                                                                for WithLimit and WithShared
//	WAIT                                                                       for WithReplicaAcks
//	EXISTS INFO LINSERT                                                        for NewRedLock
//
// Redis 6.2 or later, or Valkey.
package holdfast
