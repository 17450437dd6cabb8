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

// Mark is a fencing token for a resource. A call that is given marks takes no token from its context. It still fails if a
// lock in the context is lost or released.
type Mark struct {
	Resource string // 1 to 512 bytes of UTF-8 without NUL; for a lock, its Key, prefix included
	Token    int64  // 1 to 2^53-1
	Parallel bool   // what WithParallel sets for the marks of a context
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

// checkToken bounds tokens on both sides. A time in ns, say, would be larger than any token of a lock, and guard rows never
// go back: every real holder would be refused from then on.
func checkToken(resource string, token int64) error {
	if token <= 0 || token >= maxToken {
		return invalid("token %d for %q: want 1 to 2^53-1", token, resource)
	}
	return nil
}

type tokenKey struct{}

// carried is a list of what WithToken has put into a context, innermost first.
type carried struct {
	mark  Mark
	outer *carried
}

// WithToken returns a context that carries a fencing token for a resource, as the context of a [holdfast.Lock] does. Use it
// for a token that another service passed on, and in tests. The resource of a lock is its Key, prefix included.
//
// The token hides one that an outer WithToken set for the resource. If the context also carries a lock with that key, the
// token must be the lock's. WithToken checks nothing: the call that uses the token does.
func WithToken(ctx context.Context, resource string, token int64) context.Context {
	outer, _ := ctx.Value(tokenKey{}).(*carried)
	return context.WithValue(ctx, tokenKey{}, &carried{Mark{Resource: resource, Token: token}, outer})
}

type parallelKey struct{}

// WithParallel returns a context under which the guarded transactions of one holder run in parallel. Use it for a lock
// around much work, such as a leader's or a cron job's lock around the work on many orders. It applies to the locks and
// tokens that ctx carries now. Transactions still run one at a time for a lock that is added to the context later.
//
// The price is that another transaction of the same holder can change what a transaction reads, as without a guard.
//
// A transaction with a newer token waits until the open ones have ended. Transactions with an older token that begin
// meanwhile wait behind it, and are refused. A transaction that is not parallel waits for the open ones too.
//
// The first call for a token advances the guard row in a transaction of its own, like [Fence.Advance]. [Fence.Guard] alone
// cannot do that. It fails until the row has been advanced, with an error that says so.
//
// On PostgreSQL at REPEATABLE READ and SERIALIZABLE, make all transactions of a holder parallel, or none. One that is not
// parallel may miss what parallel ones of the same holder wrote while it waited for them. It misses nothing that parallel ones
// of an earlier holder wrote: after a wait for those, WithTx, With, WithPgx and BeginTx advance the guard row and begin anew,
// and Guard fails. On SQLite, which has one writer, WithParallel has no effect.
//
// With 16 connections and 2 ms of work in each transaction, parallel transactions reach 0.8 to 0.9 of the transactions per
// second that they reach without a guard. One at a time they reach 0.05. This was measured with PostgreSQL 15 and MariaDB
// 10.11 on one machine, with go test -bench Parallel in internal/sqltest.
func WithParallel(ctx context.Context) context.Context {
	carried, _ := inContext(ctx)
	all := map[string]int64{}
	for _, m := range carried {
		all[m.Resource] = m.Token
	}
	return context.WithValue(ctx, parallelKey{}, all)
}

// Marks returns the marks by which [Fence.Guard] would guard a transaction under ctx. With it, a library can compare the
// marks of a statement's context with those that guarded its transaction.
//
// Errors: those that Guard returns before it asks the database, such as [ErrNoToken].
func (f *Fence) Marks(ctx context.Context) ([]Mark, error) { return f.prepare(ctx, nil) }

// marks returns the marks to guard by, sorted by resource, so that two transactions that guard several never wait for each
// other.
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
	// A resource that is given twice, and once not parallel, is not parallel.
	return slices.CompactFunc(found, func(a, b Mark) bool { return a.Resource == b.Resource }), nil
}

// inContext returns the tokens that ctx carries, and the keys of the shared locks that it passes over. The tokens of holders
// that share a lock have no order, and a table that keeps the largest would refuse a holder that has done nothing wrong.
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
