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
	// leastPrune keeps a wrong unit from deleting the rows of holders that are alive and well.
	leastPrune = time.Hour
	// firstToken is a time in 2001. A smaller token does not count microseconds.
	firstToken = int64(1e15)
)

// Prune deletes old guard rows and returns how many it deleted. A row is old if its token belongs to a holder that acquired
// its lock longer than olderThan ago. Use Prune for locks whose keys are always new, such as those of requests. db is a
// [*sql.DB] or [*sql.Conn].
//
// olderThan must be an hour or more, and should be days: a holder that lost its lock longer ago, and has been paused since, can
// pass the guard of a pruned resource. Prune also deletes the row of a lock that is held for longer; the holder's next
// transaction creates it again. On PostgreSQL at REPEATABLE READ, a transaction with
// several marks that began before, and waits for another row meanwhile, may then not see what that holder wrote in parallel.
//
// Rows with tokens below 10^15, which are no lock's, stay. Prune uses the clock of this process, which should agree with that
// of Redis.
//
// Prune deletes up to 100 rows in one transaction, on MySQL one, so a guard waits no longer than for these. On PostgreSQL Prune
// skips locked rows; elsewhere it waits for them. Several processes can run it at once.
//
// Errors: [holdfast.ErrInvalid]; the context's error; else the database's error. deleted counts also before an error.
func (f *Fence) Prune(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, olderThan time.Duration) (deleted int64, err error) {
	if err := f.check(ctx); err != nil {
		return 0, err
	}
	switch {
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
			batch = 1 // a larger batch would wait for a locked row, and guards of its other rows for the batch
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

var errOrder = errors.New("the names of the rows are not sorted: is character_set_connection the client's?")

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

// prune deletes n rows by name, unless they have been raised since. The first argument is the token that theirs are below.
func (d Dialect) prune(table string, n int) string {
	table = d.quote(table)
	if d != Postgres {
		// MySQL's placeholders have no numbers, so the token comes first in the text too.
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
