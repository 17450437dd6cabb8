package main

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/peers"
)

// library is a way to take locks.
type library struct {
	name   string
	module string // whose version is told; "" for what is in this package
	// key is the name that the lock on name has in Redis.
	key  func(name string) string
	open func(s settings) (locker, error)
	// lacks says why what a scenario needs does not exist here.
	lacks map[feature]string
	// alone and together are whether it has locks with one holder, and with several.
	alone, together bool
}

// fits is whether a scenario is about locks that the library has.
func (l library) fits(s scenario) bool { return s.together && l.together || !s.together && l.alone }

// feature is what not every library has.
type feature string

const (
	belief   feature = "belief"   // it tells its holder that the lock is gone
	renewal  feature = "renewal"  // it keeps the lock for longer than a lease
	fencing  feature = "fencing"  // tokens that rise
	identity feature = "identity" // the caller may name the owner
	measured feature = "measured" // the end of a lease shows without a renewal
	reports  feature = "reports"  // a release says what came of it
	majority feature = "majority" // locks on independent masters
	reading  feature = "reading"  // any number of readers, or one writer
	tenants  feature = "tenants"  // calls say whose they are, and those take turns
)

// settings is what a scenario asks of a locker. Several lockers of one scenario are several processes.
type settings struct {
	addrs []string // several are independent masters
	lease time.Duration
	owner string // where the caller names it
	label string // by which people know the caller, where the library stores one
	limit int    // how many may hold a lock together, readers without an end, or 0 for locks with one holder
	// silence is for how long the work under a lock may report nothing, where it can report that it goes on.
	silence time.Duration
	// tenant is whose calls they are, where those take turns.
	tenant string
	// ahead is by how much the clock of the process is fast, where the library sends its time.
	ahead time.Duration
	// quarantine is for how long a master that has just started is not to be trusted.
	quarantine time.Duration
}

// readers is no limit.
const readers = -1

// locker takes locks. Its methods may be called concurrently.
type locker interface {
	// try takes the lock or fails with errHeld.
	try(ctx context.Context, key string) (lock, error)
	// acquire waits for it until ctx ends.
	acquire(ctx context.Context, key string) (lock, error)
	close()
}

type lock interface {
	// release fails with errNotHeld where the library says that the lock was not the caller's any more.
	release(ctx context.Context) error
	// lost is nil while the holder may go on, by all that the library tells it without asking Redis.
	lost() error
	token() int64 // 0 without fencing
}

// Errors of libraries are wrapped in these, so that what they say themselves can be matched too.
var errHeld, errNotHeld = peers.ErrHeld, peers.ErrNotHeld

// queued is a locker that knows how many wait in line for a key.
type queued interface{ waiting(key string) int }

func sameKey(name string) string { return name }

// marked wraps err in mark if it is one of those.
func marked(err, mark error, is ...error) error {
	for _, e := range is {
		if err != mark && errors.Is(err, e) {
			return errors.Join(mark, err)
		}
	}
	return err
}
