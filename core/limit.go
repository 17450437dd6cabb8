package holdfast

import "github.com/holdfast-go/holdfast/core/internal/protocol"

const maxLimit = 1000

// WithLimit lets up to n calls hold the lock together, this one included: from 1, the default, to 1000. Nobody is ever
// inside together with more than its own limit allows: calls that name different limits keep to the least limit of those
// inside, and a call without WithLimit waits until it is alone, and keeps all others out. So n can be changed by a rolling
// deployment: the smaller one counts at once for newcomers, and evicts nobody; the larger one as soon as no holder names the
// smaller.
//
// Waiters are let in first come, first served, and several at once where there is room. A waiter for which there is no room
// holds up those behind it, also calls that name a larger limit: so nobody starves. A holder that dies counts until its
// lease is over. A holder that was paused past its lease may for a while work beside n others: only a fence refuses its
// writes. The tokens of holders that are together have no order, so package sqlfence ignores such a lock, and refuses a
// write whose only locks are of this kind. Where each place must be fenced take one of n locks instead: TryAcquire of
// Key("seat", i), from a random i on.
//
// Calls of one process hand places over among themselves as they do a lock, see [WithLocalHandover].
//
// Redis keeps the holders in one more hash, {K}:~held, and for other lock libraries the key is held until the last holder has
// left. WithLimit needs one Redis: masters that each count to n do not count to n together, and [NewRedLock] refuses it with an
// [ErrInvalid]. With [WithReentryID] it is an ErrInvalid on every Locker.
func WithLimit(n int) CallOption {
	return callOption(func(c *config) error {
		if n < 1 || n > maxLimit {
			return invalid("WithLimit(%d): want 1 to %d", n, maxLimit)
		}
		c.limit = n
		return nil
	})
}

// WithShared lets any number of calls hold the lock together, as the readers of a sync.RWMutex do. A call without it is the
// writer: it waits until it is alone, and keeps readers out. Calls with a limit above 1 also wait until no reader is inside,
// and keep readers out. Readers that do not join, as below, stand in line behind a writer who waits.
//
// Readers of one process share what one of them acquired: its lease, its token and its renewals. Those that come while that
// one asks Redis, and within the time of [WithLocalHandover] after it had the lock, join without a command, and the last one
// to leave releases. Later ones acquire the lock anew, behind a writer who waits, so that readers keep no writer out. A call
// joins if it has the same TTL and label, and neither [WithoutRenewal] nor [WithReplicaAcks]; else it acquires the lock
// itself. Where Redis has lost the lock, all that share it lose it. What counts holders, as [State] does, counts those that
// share as one.
//
// A reader that loses its lock may read beside a writer. A reader that must not mix old and new data reads it in one
// transaction of the database. A reader cannot become a writer: a call without WithShared whose context holds the lock
// shared returns [ErrSelfDeadlock], also with [WithReentrancy]. A call WithShared whose context holds the lock already,
// shared or alone, needs WithReentrancy.
//
// WithShared and [WithLimit] replace each other: of several options of a call the last counts, and a call's counts before the
// Locker's. Where the Locker has either, WithLimit(1) makes a call the writer.
func WithShared() CallOption {
	return callOption(func(c *config) error { c.limit = protocol.NoLimit; return nil })
}
