// Package core is a lock in Redis for Go services that run on several replicas. Every acquisition carries a
// fencing token, so that a database can refuse a holder that was paused past its lease.
//
//	locker, err := holdfast.New(rdb)
//	...
//	err = locker.Do(ctx, holdfast.Key("order", id), func(ctx context.Context) error {
//		return ship(ctx, id) // one replica at a time; ctx ends if the lock is lost
//	})
//
// Do is the form to use: it leaves no way to go on with the old context. [Locker.Acquire] waits until its
// context ends, [Locker.TryAcquire] does not wait, both renew the lease until [Lock.Release]. Use one name for
// one resource everywhere: a Gin route, a task and a cron job that build their key with Key("order", id)
// exclude each other.
//
// [Locker.Claim] is for what is due at a time: of all replicas that claim a tick one gets it, however short the
// work is and however skewed their clocks are. A lock cannot do that: a job that takes a millisecond has released
// it before the next replica's timer fires.
//
// # Guarantees
//
//   - Mutual exclusion within the lease. While [Lock.Err] is nil nobody else has the lock, as long as Redis
//     keeps its data and its clock is not set forward. The deadline of a hold counts from before the command
//     was sent and ends max(25 ms, ttl/20) plus a drift margin before Redis' own. Err, [Lock.Deadline] and
//     the Err of [Lock.Context] compare clocks, and so are right at the first instruction after a pause;
//     Done follows as soon as the runtime's timers allow.
//   - Fencing. [Lock.Token] is larger than every token issued before for the key: across holders,
//     processes, and loss of all data. It is a hybrid logical clock, max(last+1, the server's time in µs),
//     below 2^53, so that Lua, JSON and JavaScript carry it exactly.
//   - Three outcomes stay apart: [ErrNotAcquired], somebody else holds it; [ErrLost], it was ours and is
//     gone; [ErrUnavailable], nobody can know. See their comments for the rest.
//   - Every call returns by its context's deadline, whatever the client's timeouts and retries are, and a
//     cancelled call leaves no lock behind.
//   - First come, first served, among processes and within one, and nobody polls: a release grants the lock to
//     the next in line and tells it so. Two commands per acquire and release, however many wait; next to none
//     between the calls of one process, which pass the lock on among themselves for a bounded time (see
//     [WithLocalHandover]). One command for a try that fails; renewals travel together in pipelines. Fencing adds
//     no round trip.
//   - The key is the canonical one, SET key value NX PX ttl with a random value: other lock libraries and
//     scripts that use it on the same key and holdfast exclude each other.
//   - Everything holdfast writes expires by itself.
//
// # Limits
//
// A lease can end under a handler that is paused or does not look at its context, and no lock service can
// prevent that: work that must not be done twice has to be fenced where it is stored, by the token.
//
// One Redis with asynchronous replication may forget a lock when it fails over or restarts without its data:
// then two may hold it until the first one's next renewal, a third of a lease later. The second has the larger
// token. [WithReplicaAcks] makes that rarer after a failover. The same goes for FLUSHALL, for eviction (use a
// maxmemory-policy other than allkeys-* and volatile-*), for a clock of Redis that is set forward, and for a
// redis.Ring whose shards come and go. Tokens are forgotten with the data, and after a TTL and a minute; from then
// on they rise because the clock of Redis does. A clock that is set back by more than that, or a failover to a
// server whose clock is behind, can repeat them.
//
// The line keeps its order as long as those who wait can be reached. Who is not heard of for 5 s loses the place in it;
// while the connection that grants arrive on is broken, others go first. A grant begins with a lease of 3 s, so
// that one to a process that has just died costs the others that long. With Redis Cluster each grant is
// published to all nodes. With a [redis.Ring], and where SUBSCRIBE is refused, those who wait poll, see
// [WithPolling]; a [Trace] hears of the latter through NodeError.
//
// Programs that use the key without holdfast neither tell anybody when they release it nor stand in line: it is
// noticed up to two seconds later, or when their lease ends, and while others wait in line they may never find
// the lock free.
//
// A lock covers what runs under its context until Release, not goroutines that outlive it. A [Lock] that is
// dropped without Release is renewed until it has been garbage collected, which a context derived from its own
// and never cancelled prevents; work that goes on without it, and without its context, is not protected.
//
// A call returns in time also where Redis is silent, but go-redis does not interrupt a read: its goroutine
// and its connection stay until the client's ReadTimeout (3 s by default). Leave it set.
//
// # Keys, commands and ACL
//
// A lock named K is the string K. Beside it there are, in the same Cluster slot,
//
//	{K}:~fence         the last token and how the last holds ended; for a TTL and a minute
//	{K}:~line          who waits, a list, and
//	{K}:~wait          what is to be known of them, a hash; for 5 s after the last of them was heard of
//	{K}:~gone:<owner>  only after a lost reply; for a minute
//	{K}:~entry         with WithReentryID, a hash; as long as the lock
//	{K}:~mark          of a name that is claimed; for the window of its ticks
//
// and where K has a hash tag of its own, K:~fence and so on. Grants are published to the channel
// holdfast:inbox:<random>, one for each Locker, with the prefix of [WithPrefix] in front. An ACL must allow these
// keys, that channel (&holdfast:inbox:*), and
//
//	EVALSHA EVAL MGET GET GETEX SET DEL PTTL PEXPIRE TIME
//	LINDEX LLEN LPOS LREM RPUSH HGET HSET HDEL PUBSUB PUBLISH SUBSCRIBE PING   to wait in line
//	HMGET HGETALL                                                              for WithReentryID
//	WAIT                                                                       for WithReplicaAcks
//
// Redis 6.2 or later, or Valkey.
//
// # How it works
//
// Acquiring, renewing and releasing are one Lua script each. An acquisition is a tenure with an owner id of
// its own, the value of the key; what makes lost, resent and delayed commands harmless is written down at
// the type tenure. The scheduler of renewals is a timer and a heap, and holds are ended by comparing
// clocks; see the types scheduler and hold. The line is in line.lua and the type inbox; the calls of one process
// stand in a queue, and what they send at once travels together, see lanes.
package core
