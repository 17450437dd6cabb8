package sqlfence

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	holdfast "github.com/holdfast-go/holdfast/core"
)

const (
	maxResource = 512     // bytes: the longest key of a lock
	maxToken    = 1 << 53 // tokens stay below it
)

// A Mark is a fencing token for a resource. A context carries a mark for each lock in it that fences. [Mark.In] adds others:
// tokens that another service passed on, those of tests, and those that let the transactions of one holder run in parallel:
//
//	lock := holdfast.Held(ctx)[0]
//	ctx = sqlfence.Mark{Resource: lock.Key(), Token: lock.Token(), Parallel: true}.In(ctx)
type Mark struct {
	Resource string // 1 to 512 bytes of UTF-8 without NUL; for a lock, its Key, prefix included
	Token    int64  // 1 to 2^53-1, and at most an hour ahead of the database's clock: see WithAnyToken

	// Parallel lets transactions with this token run in parallel. Use it for a lock around much work, such as a leader's. The
	// price is that one can change what another one reads, as without a guard.
	//
	// A transaction with a newer token, or one that is not parallel, waits until the open ones have ended. Those with an older
	// token that begin meanwhile wait behind it, and are refused.
	//
	// The first call for a token advances the guard row in a transaction of its own, like [Fence.Advance]. [Fence.Guard] cannot,
	// and fails until the row has been advanced, with an error that says so.
	//
	// On PostgreSQL at REPEATABLE READ and SERIALIZABLE, make all transactions of a holder parallel, or none: one that is not may
	// miss what parallel ones of its holder wrote while it waited. Nothing of an earlier holder is missed: behind its parallel
	// ones, WithTx and BeginTx advance the guard row and begin anew, and Guard fails: call Advance before. On SQLite, which has
	// one writer, Parallel has no effect.
	//
	// With 16 connections and 2 ms of work in each transaction, parallel ones reach 0.8 to 0.9 of the rate without a guard,
	// others 0.05 (go test -bench Parallel in internal/sqltest).
	Parallel bool
}

// In returns a context that carries the mark beside the locks and marks of ctx. It hides one that ctx carries for the resource.
// If ctx carries a lock with that key, the token must be the lock's; the call that uses the mark checks it.
func (m Mark) In(ctx context.Context) context.Context {
	outer, _ := ctx.Value(markKey{}).(*carried)
	return context.WithValue(ctx, markKey{}, &carried{m, outer})
}

type markKey struct{}

// carried is a list of the marks that Mark.In has put into a context, innermost first.
type carried struct {
	mark  Mark
	outer *carried
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
	// A time in ns, say, would be larger than any token of a lock, and guard rows never go back: every real holder would be
	// refused from then on.
	if m.Token <= 0 || m.Token >= maxToken {
		return invalid("token %d for %q: want 1 to 2^53-1", m.Token, m.Resource)
	}
	return nil
}

// futureToken refuses a token that would shut out every holder for hours or for ever. The tokens of locks are microseconds since
// 1970 by the clock of Redis, or a little more.
func futureToken(resource string, token int64) error {
	return invalid("token %d for %q is more than an hour ahead of the database's clock: the clock of Redis or of the database is wrong, or the token is not a lock's (see WithAnyToken)", token, resource)
}

// Marks returns the marks by which [Fence.Guard] would guard a transaction under ctx, sorted by resource, so that a library can
// compare those of a statement with those of its transaction.
//
// Errors: those that Guard returns before it asks the database, such as [ErrNoToken].
func (f *Fence) Marks(ctx context.Context) ([]Mark, error) {
	if err := f.check(ctx); err != nil {
		return nil, err
	}
	// The marks first: a lock that is released after this line fails the check below, rather than being left out.
	all, err := marks(ctx)
	if over := live(ctx); over != nil {
		return nil, over
	}
	return all, err
}

// check finds what is wrong with any call.
func (f *Fence) check(ctx context.Context) error {
	switch {
	case f == nil || f.dialect == 0:
		return invalid("a Fence that was not made by New")
	case ctx == nil:
		return invalid("nil context")
	}
	return nil
}

// marks returns what ctx carries, sorted, so that two transactions with several marks never wait for each other. It passes
// over shared locks. The tokens of holders that share a lock have no order, and a table that keeps the largest would refuse a
// holder that has done nothing wrong.
func marks(ctx context.Context) ([]Mark, error) {
	var shared []string
	found := map[string]Mark{}
	top, _ := ctx.Value(markKey{}).(*carried)
	for c := top; c != nil; c = c.outer {
		if _, hidden := found[c.mark.Resource]; !hidden {
			found[c.mark.Resource] = c.mark
		}
	}
	for _, lock := range holdfast.Held(ctx) {
		key, token := lock.Key(), lock.Token()
		switch m, ok := found[key]; {
		case lock.Limit() != 1:
			shared = append(shared, key)
		case !ok:
			found[key] = Mark{Resource: key, Token: token}
		case m.Token != token:
			return nil, invalid("two tokens for %q: %d and %d", key, m.Token, token)
		}
	}
	if len(found) == 0 && len(shared) > 0 {
		return nil, fmt.Errorf("%w; a lock with WithLimit or WithShared does not fence: %q", ErrNoToken, shared)
	}
	if len(found) == 0 {
		return nil, ErrNoToken
	}
	all := slices.SortedFunc(maps.Values(found), func(a, b Mark) int { return strings.Compare(a.Resource, b.Resource) })
	for _, m := range all {
		if err := m.check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// live returns an error if ctx has ended, or if a lock in it is lost or released. It asks the locks themselves: a context
// that derives from theirs learns of a loss only by a timer, and behind a context.WithoutCancel not at all.
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

// because adds the error of live, if there is one, to an error of the database. Drivers differ in what they return when the
// context ends a wait, and no driver says that the lock is lost.
func because(ctx context.Context, err error) error {
	if ended := live(ctx); ended != nil {
		return fmt.Errorf("%w; %w", err, ended)
	}
	return err
}
