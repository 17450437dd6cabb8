package sqlfence

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	holdfast "github.com/holdfast-go/holdfast/core"
)

const (
	maxResource = 512     // bytes: the longest key of a lock
	maxToken    = 1 << 53 // tokens stay below it
)

// Mark is a fencing token for a resource. A call that is given marks takes no token from the context, and fails all the same if
// a lock in it is over.
type Mark struct {
	Resource string // 1 to 512 bytes of UTF-8 without NUL: for a lock, its Key, prefix included
	Token    int64  // 1 to 2^53-1
	Parallel bool   // as WithParallel does for those of a context
}

func (m Mark) check() error {
	switch {
	case m.Resource == "":
		return invalid("empty resource")
	case len(m.Resource) > maxResource:
		return invalid("resource of %d bytes, %d are allowed: %.40q...", len(m.Resource), maxResource, m.Resource)
	case strings.IndexByte(m.Resource, 0) >= 0:
		return invalid("resource with a NUL byte: %q", m.Resource)
	case !utf8.ValidString(m.Resource):
		return invalid("resource is not UTF-8: %q", m.Resource)
	}
	return checkToken(m.Resource, m.Token)
}

// checkToken bounds tokens on both sides. A time in ns, say, would pass for a token that is never outdone, and guard
// rows do not go back: every true holder would be refused from then on.
func checkToken(resource string, token int64) error {
	if token <= 0 || token >= maxToken {
		return invalid("token %d for %q: want 1 to 2^53-1", token, resource)
	}
	return nil
}

type tokenKey struct{}

// carried is a list, innermost first, of what WithToken has put into a context.
type carried struct {
	mark  Mark
	outer *carried
}

// WithToken returns a context that carries a token for a resource, as the context of a [holdfast.Lock] does: for a token that
// another service passed on, and for tests. The resource of a lock is its Key, prefix included. It hides an outer one for the
// same resource. It is checked where it is used. Where the context holds the lock of that name as well, both must be the same
// token.
func WithToken(ctx context.Context, resource string, token int64) context.Context {
	outer, _ := ctx.Value(tokenKey{}).(*carried)
	return context.WithValue(ctx, tokenKey{}, &carried{Mark{Resource: resource, Token: token}, outer})
}

type parallelKey struct{}

// WithParallel returns a context under which the guarded transactions of one holder run beside each other, for the locks and
// tokens that ctx carries now: for a leader's or a cron job's lock around the work on many orders. Locks that are added to the
// context later are guarded one transaction at a time, as ever.
//
// A transaction of a newer token waits until the open ones have ended. Older ones that begin meanwhile wait behind it, and
// are refused. A transaction that is not parallel waits like that too. What is read can be changed by another transaction of
// the same holder, as without a guard: that is the price. The first call for a token advances the guard row in a transaction
// of its own, see [Fence.Advance]; [Fence.Guard] alone fails there, and says to call Advance.
//
// On PostgreSQL at REPEATABLE READ and SERIALIZABLE make all of one holder's transactions parallel, or none: one that is not
// may miss what parallel ones of the same holder wrote while it waited for them. If it waited for those of an earlier holder,
// it advances the guard row like a parallel one, and so misses nothing. SQLite, with its one writer, takes no notice.
//
// 16 connections with 2 ms of work each reach 0.8 to 0.9 of the transactions per second that they reach without a guard, and
// 0.05 one at a time (PostgreSQL 15 and MariaDB 10.11 on one machine, go test -bench Parallel in internal/sqltest).
func WithParallel(ctx context.Context) context.Context {
	carried, _ := inContext(ctx)
	all := map[string]int64{}
	for _, m := range carried {
		all[m.Resource] = m.Token
	}
	return context.WithValue(ctx, parallelKey{}, all)
}

// Marks returns the marks that [Fence.Guard] would raise for ctx: for a library that compares what a transaction was guarded by
// with what a statement's context carries.
//
// Errors: those of Guard before it asks the database, [ErrNoToken] above all.
func (f *Fence) Marks(ctx context.Context) ([]Mark, error) { return f.prepare(ctx, nil) }

// marks returns what there is to guard, in the order of the resources, so that two transactions that guard several
// never wait for each other.
func marks(ctx context.Context, explicit []Mark) ([]Mark, error) {
	found, shared := slices.Clone(explicit), []string(nil)
	if len(explicit) == 0 {
		found, shared = inContext(ctx)
	}
	if len(found) == 0 && len(shared) > 0 {
		return nil, fmt.Errorf("%w; a lock with WithLimit or WithShared does not fence: %q", ErrNoToken, shared)
	}
	if len(found) == 0 {
		return nil, ErrNoToken
	}
	slices.SortFunc(found, func(a, b Mark) int {
		if c := strings.Compare(a.Resource, b.Resource); c != 0 || a.Parallel == b.Parallel {
			return c
		} else if b.Parallel {
			return -1
		}
		return 1
	})
	for i, m := range found {
		if err := m.check(); err != nil {
			return nil, err
		}
		if i > 0 && found[i-1].Resource == m.Resource && found[i-1].Token != m.Token {
			return nil, invalid("two tokens for %q: %d and %d", m.Resource, found[i-1].Token, m.Token)
		}
	}
	// What is given twice, and once not in parallel, is not.
	return slices.CompactFunc(found, func(a, b Mark) bool { return a.Resource == b.Resource }), nil
}

// inContext returns the tokens that ctx carries, and the keys of locks that it passes over: holders that are together may have
// any order, and a table that keeps the largest token would refuse one that has done nothing wrong.
func inContext(ctx context.Context) (found []Mark, shared []string) {
	seen := map[string]bool{}
	top, _ := ctx.Value(tokenKey{}).(*carried)
	for c := top; c != nil; c = c.outer {
		if !seen[c.mark.Resource] {
			seen[c.mark.Resource] = true
			found = append(found, c.mark)
		}
	}
	for _, lock := range holdfast.Held(ctx) {
		if lock.Limit() != 1 {
			shared = append(shared, lock.Key())
			continue
		}
		found = append(found, Mark{Resource: lock.Key(), Token: lock.Token()})
	}
	parallel, _ := ctx.Value(parallelKey{}).(map[string]int64)
	for i, m := range found {
		token, ok := parallel[m.Resource]
		found[i].Parallel = ok && token == m.Token
	}
	return found, shared
}

// live refuses work under a context that has ended, or with a lock that is over, while the database is still
// untouched. The locks are asked themselves, as a context that descends from theirs learns of a loss only by a timer,
// and not at all behind a context.WithoutCancel.
func live(ctx context.Context) error {
	err := ctx.Err()
	if over := holdfast.Err(ctx); over != nil && err != nil {
		return fmt.Errorf("sqlfence: %w; the context has ended: %w", over, err)
	} else if over != nil {
		return fmt.Errorf("sqlfence: %w", over)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != err {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return failed("the context has ended", err)
	}
	return nil
}

// because adds to an error of the database that ctx has ended or a lock is over, if so: drivers differ in what they say
// of a wait that the context has ended, and none says that the lock is lost.
func because(ctx context.Context, err error) error {
	if ended := live(ctx); ended != nil {
		return fmt.Errorf("%w; %w", err, ended)
	}
	return err
}
