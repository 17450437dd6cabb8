package holdfast

import "github.com/holdfast-go/holdfast/core/internal/protocol"

const maxLimit = 1000

// WithLimit lets up to n calls hold the lock together, 1 to 1000. Default: 1, a lock that is held alone.
//
// Nobody ever holds the lock together with more calls than its own limit allows. So if calls name different limits, the
// smallest limit among the holders counts, and a call without WithLimit waits until it is alone and then keeps all others
// out. A rolling deployment can therefore change n: a smaller one counts at once for newcomers and evicts nobody, a
// larger one counts as soon as no holder names the smaller.
//
// Waiters enter first come, first served, several at once if there is room. A waiter that does not fit in yet holds up
// those behind it, even those that name a larger limit, so that nobody starves. A holder that crashed counts until its
// lease expires. A holder that was paused past its lease may for a while work alongside n others.
//
// Such a lock does not fence: the tokens of calls that hold it together have no order. Package sqlfence ignores such locks,
// and refuses a write whose context carries no other lock. If each place has to be fenced, use n locks instead: TryAcquire of
// Key("seat", i), starting from a random i.
//
// Calls of one process hand places to each other, see [WithLocalHandover]. Redis keeps the holders in another key,
// {K}:~held. Other lock libraries find the key held until the last holder has left.
//
// WithLimit needs one Redis: [NewRedLock] refuses it with an [ErrInvalid], because masters that each count to n do not
// count to n together. WithLimit and [WithReentryID] together are an ErrInvalid too.
func WithLimit(n int) CallOption {
	return callOption(func(c *config) error {
		if n < 1 || n > maxLimit {
			return invalid("WithLimit(%d): want 1 to %d", n, maxLimit)
		}
		c.limit = n
		return nil
	})
}

// WithShared lets any number of calls hold the lock together, like the readers of a sync.RWMutex. A call without it is a
// writer: it waits until it is alone, and keeps readers out. So does a call WithLimit(n), except that up to n of those
// hold the lock together. Readers that arrive while a writer waits stand in line behind it, unless they join a reader as
// follows.
//
// Readers of one process share an acquisition: its lease, its token and its renewals. A reader joins without a command if
// another reader of its process is still acquiring the lock, or acquired it less than the time of [WithLocalHandover]
// ago. Later readers acquire the lock anew, behind a waiting writer, so that readers never keep a writer out. To join, a
// call needs the same TTL and label, and neither [WithoutRenewal] nor [WithReplicaAcks]; otherwise it acquires the lock
// on its own. The last reader to leave releases the acquisition. If Redis loses the lock, all that share it lose it. In
// [State] and other counts of holders, they count as one.
//
// A reader that has lost its lock may read while a writer writes. A reader that must not see a mix of old and new data
// reads in one transaction of the database. Like WithLimit, WithShared does not fence.
//
// A reader cannot become a writer: a call without WithShared whose context holds the lock shared fails with
// [ErrSelfDeadlock], even with [WithReentrancy]. A call WithShared whose context already holds the lock, shared or alone,
// needs WithReentrancy.
//
// WithShared and [WithLimit] replace each other: the last option of a call counts, and the call's options override the
// Locker's. If the Locker has either, WithLimit(1) makes a call a writer.
func WithShared() CallOption {
	return callOption(func(c *config) error { c.limit = protocol.NoLimit; return nil })
}
