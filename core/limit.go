package holdfast

import "github.com/holdfast-go/holdfast/core/internal/protocol"

const maxLimit = 1000

// WithLimit lets up to n calls hold the lock together, 1 to 1000. Default: 1, a lock that is held alone. With
// [WithReentryID] it is an [ErrInvalid].
//
// Nobody ever holds the lock together with more calls than its own limit allows: the smallest limit among the holders
// counts, and a call without WithLimit waits until it is alone. A rolling deployment can therefore change n. A smaller
// one counts at once for newcomers and evicts nobody.
//
// Waiters enter first come, first served. One that does not fit in yet holds up those behind it, so that nobody
// starves. A holder that crashed counts until its lease expires; one that was paused past its lease may work alongside
// n others.
//
// Such a lock does not fence: the tokens of calls that hold it together have no order. Package sqlfence ignores it, and
// refuses a write whose context carries no other lock. core/limits.md shows how to fence each place.
func WithLimit(n int) CallOption {
	return callOption(func(c *config) error {
		if n < 1 || n > maxLimit {
			return invalid("WithLimit(%d): want 1 to %d", n, maxLimit)
		}
		c.limit = n
		return nil
	})
}

// places is the limit for callers.
func (c *config) places() int {
	if c.limit == protocol.NoLimit {
		return 0
	}
	return c.limit
}

// WithShared lets any number of calls hold the lock together, like the readers of a sync.RWMutex. A call without it is
// a writer: it waits until it is alone, and keeps readers out, as calls [WithLimit] do. Readers that arrive while a
// writer waits stand in line behind it, or join a reader of their process.
//
// Readers of one process share an acquisition, with its lease, token, renewals and loss; it counts as one holder. A
// reader joins, without a command, one that is still acquiring the lock or acquired it less than the time of
// [WithLocalHandover] ago, with the same TTL and label, and neither [WithoutRenewal] nor [WithReplicaAcks].
//
// A reader that has lost its lock may read while a writer writes. One that must not see a mix of old and new data reads
// in one transaction of the database. Like WithLimit, WithShared does not fence.
//
// A reader cannot become a writer: a call without WithShared whose context holds the lock shared fails with
// [ErrSelfDeadlock], even with [WithReentrancy]. WithShared and WithLimit replace each other: if the Locker has either,
// WithLimit(1) makes a call a writer.
func WithShared() CallOption {
	return callOption(func(c *config) error { c.limit = protocol.NoLimit; return nil })
}
