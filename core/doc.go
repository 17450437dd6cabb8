// Package holdfast is a lock in Redis for Go services that run on several replicas. Every acquisition carries a
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
//     [WithLocalHandover]). One command for a try that fails; renewals travel in pipelines, and where
//     many callers are after locks at once, one command takes or frees several. Fencing adds no round trip.
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
// published to all nodes. After a failover in which the old master lives on, or where an address leads elsewhere, a
// waiter finds with its next look, within 2 s, that the server does not know its connection, and makes it anew.
//
// With a [redis.Ring], where SUBSCRIBE is refused, and where scripts may not PUBLISH, as on some managed services,
// waiters poll, see [WithPolling]; a [Trace] hears of the latter two through NodeError. That scripts may not publish shows
// at the first release that has somebody to tell: it grants the lock to nobody, and the first that looks gets it, up to
// 2 s later and perhaps not in the order of arrival.
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
// # Errors
//
// They are matched with errors.Is, those with a type with errors.As:
//
//	ErrNotAcquired   somebody else holds the lock: nothing ran; a *HeldError tells who, and for how long at least
//	ErrUnavailable   Redis did not answer, or refused: nothing ran; of a Release, the key may stay for its lease.
//	                 With a *QuarantineError most masters have started too recently to vote
//	ErrLost          the lease is over, or the key is another's: what ran may have run beside another holder
//	ErrClosed        the Locker was shut down: nothing ran; of Lock.Err, the lock was given up in a Shutdown
//	ErrSelfDeadlock  the context has this very lock: nothing ran
//	ErrTick          of Claim, a tick outside of the window: nothing was claimed
//	ErrInvalid       a key, an option or another argument that can never work
//
// Where the context ended a wait, the error matches the context's too. Do joins the error of its function with that of the
// release.
//
// # RedLock
//
// [NewRedLock] takes locks on independent masters, so that one of them, or two of five, may be gone. It is the
// algorithm of the Redis documentation, "Distributed Locks with Redis": one key with one random value on all masters,
// held by whoever has it on a majority; what remains of the lease is counted from before the first command was sent,
// less a margin for drift; who fails undoes it everywhere, and tries again after a random time. All masters are asked
// at once, and the answer is there when a majority is, or none is possible any more: those that hang cost nothing
// while a majority answers, and else a node timeout, see [WithNodeTimeout]. Five masters see two commands each for an
// acquisition and its release, and it takes two round trips to the third fastest of them.
//
// What has been said against RedLock (M. Kleppmann, "How to do distributed locking", 2016), and what is done about it:
//
//   - It has no token that rises. Here the client proposes one, masters refuse what is not larger than all they have
//     recorded, and a lock counts only those that recorded its very token. Two majorities have a master in common, so
//     tokens rise strictly. The database has to refuse the smaller ones, as with any lock.
//   - A holder may be paused past its lease. No lock service can prevent that. Err, Deadline and the lock's context
//     tell at the first look after the pause; work that is on its way by then has to be fenced.
//   - Messages may be delayed without bound. A majority that comes together too late is no lock: time counts from
//     before the first command, by the monotonic clock. A command that arrives after its own clean-up finds a
//     tombstone.
//   - It relies on clocks. Leases rely on the rate of clocks: a master's must not run faster than the holder's by
//     more than 1 % and 2 ms within a lease. A clock of a master that is set forward lets go of its leases early, and
//     counts as the loss of that master's memory without a restart: it takes one beyond those that a majority can
//     spare, and then two may hold until the first one's next renewal. A clock set back does no harm. The wall clock
//     of a client matters to no lease; one that is hours off costs its first acquisition a retry. Masters whose
//     clocks differ from those of the others by more than 2 s refuse the tokens that these take, and so are of no
//     use: keep NTP running.
//   - A master that crashes and restarts may have forgotten a lock, and gives it away again. It does not vote for
//     [WithQuarantine] after its start, and tells who asks until when. What restarts from an append-only file that was
//     not synced counts the same.
//   - That delay relies on clocks in its turn. So it does: the age of a master is told by its own clock, and a second
//     is taken off as both of its ends are rounded. A clock that is set forward right after the restart makes the
//     master look older. A Locker that knew the master before notices that it runs anew and waits by its own
//     monotonic clock as well; one that did not has nothing to compare with.
//
// What remains: FLUSHALL, eviction, a restored backup, and a replica that is promoted behind the same address while
// its run goes on, make a master forget without a restart. Keep maxmemory-policy at noeviction, and do not let
// masters fail over. Where most masters forget at once, two may hold until the first one's next renewal. The second has
// the larger token, as a master that knows of no token takes none that its clock has passed, unless it is asked for
// within about 10 ms of the first, or the time by which the clocks of the masters differ or requests vary in how long
// they take. A master whose clock, or whose requests, are more than a second ahead of most gets a lock that is new to it
// with the first renewal only. A cold start of all masters means no locks for the quarantine. [Locker.Claim] withdraws what it
// raised where it did not get a majority; a claimant that dies in the middle of it leaves the tick to nobody, and the
// tick is not run: never twice, but perhaps not at all. A master takes no claim of a tick that it may have granted
// before it started.
//
// Those who wait stand in a line on each master. A release tells the first in line on each that the lock is free and
// keeps it for that one for a moment, at most a node timeout; as masters may disagree on who is first, the order is
// that of arrival in the long run only. One call per process and key contends, the others queue behind it. Acquire
// waits out an outage of the majority for as long as a lease, TryAcquire, Release and Extend for a node timeout.
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
//	EXISTS INFO LINSERT                                                        for NewRedLock
//
// Redis 6.2 or later, or Valkey.
//
// # How it works
//
// Acquiring, renewing and releasing are one Lua script each. An acquisition is a tenure with an owner id of
// its own, the value of the key; what makes lost, resent and delayed commands harmless is written down in
// ARCHITECTURE.md, in this folder, with the words, the packages below and the way of a reply, file by file.
package holdfast
