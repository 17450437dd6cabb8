package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
)

// Drivers are recognized by the shape of their errors, because every program would depend on a driver imported here:
//
//	SQLState() string          pgx, lib/pq; with a field Severity
//	Number, a field            go-sql-driver/mysql
//	Code, method or field      modernc.org/sqlite and ncruces/go-sqlite3; mattn/go-sqlite3
//
// The shape includes the kind of integer, because other errors have a Code too: an RPC's "not found" is 5, and so is BUSY.

// retryable reports whether a transaction that ended with err left nothing behind and may succeed when repeated.
func (f *Fence) retryable(err error) bool {
	if errors.Is(err, ErrCommitUnknown) || errors.Is(err, ErrStale) {
		return false
	}
	var gone *goneError
	if errors.As(err, &gone) {
		return true
	}
	// A connection that was found dead cannot have committed, except at COMMIT itself, where err is an ErrCommitUnknown.
	return f.transient(err) || errors.Is(err, driver.ErrBadConn) || find(err, unsent)
}

// unsent reports whether pgx says that nothing was sent. Do not believe it about a COMMIT: if the connection breaks after a
// COMMIT that took effect, pgx v5.12 says "conn closed", and that it is safe to retry.
func unsent(err error) bool {
	e, ok := err.(interface{ SafeToRetry() bool })
	return ok && e.SafeToRetry()
}

func (f *Fence) transient(err error) bool {
	return f.ours(err) || find(err, f.dialect.transient)
}

// ours reports whether a function of WithRetries says to repeat.
func (f *Fence) ours(err error) bool {
	return slices.ContainsFunc(f.also, func(is func(error) bool) bool { return is(err) })
}

func (d Dialect) transient(err error) bool {
	switch d {
	case Postgres:
		switch sqlState(err) {
		case "40001", "40P01": // serialization failure, deadlock; not 55P03, see waited
			return true
		}
	case MySQL:
		switch number(err, "Number") {
		case 1213, 1020: // deadlock, changed since the snapshot; not 1205 and 3572, see waited
			return true
		}
	case SQLite:
		switch number(err, "Code") & 0xff {
		case 5, 6: // BUSY, LOCKED; the other bits are the extended code
			return true
		}
	}
	return false
}

// waited reports whether err, that long after the call began, may be the end of a wait that the program has bounded: with
// lock_timeout, innodb_lock_wait_timeout, busy_timeout or NOWAIT. A repeat would multiply the bound. PostgreSQL and MySQL have
// codes for that, which are not transient. SQLite says BUSY too if it has no busy_timeout, as is the default of some drivers,
// and if it sees that to wait would be of no use.
func (f *Fence) waited(err error, passed time.Duration) bool {
	busy := func(err error) bool { return number(err, "Code")&0xff == 5 }
	return f.dialect == SQLite && passed >= busyFor && find(err, busy) && !f.ours(err)
}

// changed reports whether a statement failed because another transaction has committed since this one's snapshot.
func (d Dialect) changed(err error) bool {
	return d == Postgres && sqlState(err) == "40001" || d == MySQL && number(err, "Number") == 1020
}

// advised adds advice to an error of the database which says that the guard's table is missing or the dialect is wrong. It
// looks for the errors of all databases, because the database may not be that of the dialect.
func (f *Fence) advised(err error) error {
	text := func(parts ...string) func(error) bool {
		return func(err error) bool {
			return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(err.Error(), part) })
		}
	}
	switch {
	case find(err, func(err error) bool { return sqlState(err) == "42703" && strings.Contains(err.Error(), "parallel") }):
		return fmt.Errorf("%w (the table %s is not the one that fence.DDL() creates: ALTER TABLE %[2]s ADD COLUMN parallel boolean NOT NULL DEFAULT false): %[3]w", err, f.table, holdfast.ErrInvalid)
	case find(err, func(err error) bool { return sqlState(err) == "42P01" || number(err, "Number") == 1146 }), find(err, text("no such table")):
		return fmt.Errorf("%w (there is no table %s for the guard: run fence.DDL(), once or in a migration, see sqlfence/migrations)", err, f.table)
	case find(err, func(err error) bool { return sqlState(err) == "42601" || number(err, "Number") == 1064 }),
		find(err, text("syntax error", "unrecognized token", "no such function")):
		return fmt.Errorf("%w (the fence is for %v: give New the dialect of this database)", err, f.dialect)
	}
	return err
}

// committed judges what COMMIT returned.
func (f *Fence) committed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case f.transient(err), ended(err), find(err, f.dialect.refused):
		return because(ctx, failed("commit", err))
	}
	return &unknownError{err}
}

// refused reports whether the error is the database's answer that it did not commit.
func (d Dialect) refused(err error) bool {
	switch d {
	case Postgres:
		// The last two are how pgx and lib/pq report a transaction that had failed before.
		return refusedBy(sqlState(err), severity(err)) ||
			err.Error() == "commit unexpectedly resulted in rollback" ||
			strings.EqualFold(err.Error(), "pq: could not complete operation in a failed transaction")
	case MySQL:
		return number(err, "Number") == 1205 // a lock that COMMIT waits for before it does anything
	case SQLite:
		return number(err, "Code")&0xff == 19 // a deferred constraint
	}
	return false
}

// refusedBy reports whether PostgreSQL's answer to COMMIT means that nothing was committed. 25P03 does, FATAL as it is: the
// server ended the session because it had waited in the transaction for longer than idle_in_transaction_session_timeout. It
// looks for that a last time when it has read a statement and not yet begun it. An answer of severity ERROR does, too: once
// the commit is recorded, the server answers with FATAL or PANIC only. The exceptions are 40003, "statement completion
// unknown", class 08, the connection, where another server speaks for the one that commits, and 25P04, which
// transaction_timeout may bring up behind a commit. If the severity is missing, or in the server's language as lib/pq reports
// it, refusedBy goes by what is never FATAL in answer to COMMIT: lock timeouts, data, constraints, a transaction that had
// failed before, syntax and rights, PL/pgSQL.
func refusedBy(state, severity string) bool {
	if len(state) != 5 || state == "40003" || state == "25P04" || state[:2] == "08" {
		return false
	}
	if state == "25P03" || state == "55P03" { // idle in the transaction, lock timeout
		return true
	}
	switch severity {
	case "ERROR":
		return true
	case "FATAL", "PANIC":
		return false
	}
	return slices.Contains([]string{"22", "23", "25", "42", "P0"}, state[:2])
}

// severity returns the severity of a PostgreSQL error, in English if the driver keeps that separately, as pgx does.
func severity(err error) string {
	for _, name := range []string{"SeverityUnlocalized", "Severity"} {
		if v := field(err, name); v.IsValid() && v.Kind() == reflect.String && v.Len() > 0 {
			return v.String()
		}
	}
	return ""
}

// ended reports whether the error says that the transaction had already ended.
func ended(err error) bool {
	return errors.Is(err, sql.ErrTxDone) || find(err, func(err error) bool { return err.Error() == "tx is closed" }) // pgx
}

func sqlState(err error) string {
	if s, ok := err.(interface{ SQLState() string }); ok {
		return s.SQLState()
	}
	return ""
}

// number returns the integer that err has as a method or a field called name, or 0.
func number(err error, name string) int64 {
	v := reflect.ValueOf(err)
	if m := v.MethodByName(name); m.IsValid() {
		if t := m.Type(); t.NumIn() != 0 || t.NumOut() != 1 {
			return 0
		}
		return integer(m.Call(nil)[0])
	}
	return integer(field(err, name))
}

// field returns err's field called name, or an invalid value.
func field(err error, name string) reflect.Value {
	v := reflect.ValueOf(err)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	// Not FieldByName, which panics if the field belongs to an embedded nil pointer.
	f, ok := v.Type().FieldByName(name)
	if !ok {
		return reflect.Value{}
	}
	v, _ = v.FieldByIndexErr(f.Index)
	return v
}

// integer returns v if it is of a kind that drivers use, int, uint8 or uint16, or else 0.
func integer(v reflect.Value) int64 {
	switch v.Kind() {
	case reflect.Int:
		return v.Int()
	case reflect.Uint8, reflect.Uint16:
		return int64(v.Uint())
	}
	return 0
}

// find reports whether err, or an error that it wraps, satisfies is. It skips a nil pointer in an error, a well-known
// mistake, because most methods of one would panic.
func find(err error, is func(error) bool) bool {
	if isNil(err) {
		return false
	}
	if is(err) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return find(e.Unwrap(), is)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if find(err, is) {
				return true
			}
		}
	}
	return false
}
