package sqlfence

import "context"

// Commit commits a transaction that [Fence.BeginTx] or [Fence.Guard] has guarded, as [Fence.WithTx] does: it looks at the
// locks in ctx and at ctx itself once more, and rolls tx back where one of them is over; and it tells a COMMIT whose outcome
// is unknown from one that failed. ctx is that of the guard.
//
// On MySQL Commit does not find out that the transaction has ended before, as WithTx does.
//
// Errors: [holdfast.ErrLost] for a lock of ctx that is over, and the context's error, with which nothing is written;
// [ErrCommitUnknown]; [holdfast.ErrInvalid]; else the database's error.
func (f *Fence) Commit(ctx context.Context, tx Tx) error {
	switch {
	case f == nil || f.dialect == 0:
		return invalid("a Fence that New did not make")
	case ctx == nil:
		return invalid("nil context")
	case isNil(tx):
		return invalid("nil transaction")
	}
	// Drivers disagree on what COMMIT does under a context that has ended, so it does not come to that.
	if err := live(ctx); err != nil {
		return rolledBack(err, tx.Rollback)
	}
	return f.committed(tx.Commit())
}

// Marks are those that [Fence.Guard] raises for ctx: for a library that compares what a transaction was guarded by with what a
// statement's context carries.
//
// Errors: those of Guard before it asks the database, [ErrNoToken] above all.
func (f *Fence) Marks(ctx context.Context) ([]Mark, error) { return f.prepare(ctx, nil) }
