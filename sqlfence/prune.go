package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	pruneBatch = 100
	// leastPrune keeps a slip of a unit from deleting the rows of holders that are alive and well.
	leastPrune = time.Hour
	// firstToken is a time in 2001: what is smaller counts something else than microseconds.
	firstToken = int64(1e15)
)

// Prune deletes the guard rows of resources whose last guarded transaction was by a holder that acquired its lock longer than
// olderThan ago, and returns their number: for locks with ever new keys, those of requests above all. The tokens of locks are
// microseconds since 1970, so that no column is needed. Rows with tokens of another kind, below 10^15, stay.
//
// A holder that lost its lock longer than olderThan ago, and has been paused since, can pass the guard of a pruned resource: it is
// safe against shorter pauses. Take days, an hour at least. The clock is that of this process, and should agree with Redis'.
//
// The row of a lock that is held for longer than olderThan goes too; its next transaction makes it again.
//
// Prune reads the table along its primary key, and deletes up to 100 rows at a time, on MySQL one, each batch in a transaction of its
// own, so that guards wait for it no longer than that takes. On PostgreSQL it passes over rows that are locked, elsewhere it waits
// for them. db is an *sql.DB or *sql.Conn. It may run in several processes at once, and be repeated.
//
// Errors: [holdfast.ErrInvalid]; the context's; else the database's. What was deleted before is counted.
func (f *Fence) Prune(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, olderThan time.Duration) (deleted int64, err error) {
	switch {
	case f == nil || f.dialect == 0:
		return 0, invalid("a Fence that New did not make")
	case ctx == nil:
		return 0, invalid("nil context")
	case isNil(db):
		return 0, invalid("nil database")
	case olderThan < leastPrune:
		return 0, invalid("Prune(%v): want an hour or more: a holder that is paused for longer can pass", olderThan)
	}
	cutoff := time.Now().Add(-olderThan).UnixMicro()
	for last := ""; ; {
		page, err := texts(db.QueryContext(ctx, f.sql.old, last, firstToken, cutoff))
		if err != nil {
			return deleted, because(ctx, failed("prune", f.advised(err)))
		}
		if len(page) == 0 {
			return deleted, nil
		}
		if page[0] <= last {
			return deleted, failed("prune", errOrder)
		}
		last = page[len(page)-1]
		batch := len(page)
		if f.dialect == MySQL {
			batch = 1 // in a batch, it would wait for a row that is locked, and guards of the others for it
		}
		for names := range slices.Chunk(page, batch) {
			args := []any{cutoff}
			for _, resource := range names {
				args = append(args, resource)
			}
			err = f.repeat(ctx, nil, f.retryable, func() (bool, error) {
				result, err := db.ExecContext(ctx, f.dialect.prune(f.table, len(names)), args...)
				if err != nil {
					return true, because(ctx, failed("prune", err))
				}
				n, err := result.RowsAffected()
				deleted += n
				return true, err
			})
			if err != nil {
				return deleted, err
			}
		}
	}
}

var errOrder = errors.New("the names of the rows do not come in their order: is character_set_connection the client's?")

func texts(rows *sql.Rows, err error) (all []string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// prune deletes n rows by their names unless they have been raised since: the first argument is the token to stay below.
func (d Dialect) prune(table string, n int) string {
	table = d.quote(table)
	if d != Postgres {
		// MySQL does not number its placeholders, so the token's is in front here too.
		return "DELETE FROM " + table + " WHERE token < ? AND resource IN (?" + strings.Repeat(", ?", n-1) + ")"
	}
	var names strings.Builder
	for i := range n {
		if i > 0 {
			names.WriteString(", ")
		}
		names.WriteString("$" + strconv.Itoa(i+2))
	}
	return "DELETE FROM " + table + " WHERE resource IN (SELECT resource FROM " + table +
		" WHERE token < $1 AND resource IN (" + names.String() + ") FOR UPDATE SKIP LOCKED)"
}
