// Package native is how package pgxfence, which is a module of its own, has sqlfence guard transactions that are not those of
// database/sql.
package native

import "context"

// Conn is a transaction as sqlfence needs it, whatever library it comes from.
type Conn struct {
	Tx       any
	Blind    bool // it reads nothing: an old snapshot does no harm, and it raises the rows that others are to share
	Exec     func(query string, args ...any) (id int64, err error)
	Number   func(query string, args ...any) (int64, error) // the only number in the result; sql.ErrNoRows if it is empty
	Commit   func() error
	Rollback func() error
}

// Package sqlfence sets these. A fence is a *sqlfence.Fence, and must be for PostgreSQL.
var (
	Guard  func(ctx context.Context, fence any, c Conn) error
	Commit func(ctx context.Context, fence any, c Conn) error
	WithTx func(ctx context.Context, fence any, begin func() (Conn, error), fn func(ctx context.Context, tx any) error) error
)
