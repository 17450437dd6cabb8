package sqlfence

import (
	"fmt"
	"strconv"
	"strings"
)

// Dialect is a kind of database.
type Dialect uint8

// The databases that a [Fence] knows.
const (
	// Postgres is PostgreSQL 11 or later. Use READ COMMITTED, its default: a transaction that meets another one waits at the
	// guard, and sees all that the other one wrote. At REPEATABLE READ and SERIALIZABLE PostgreSQL fails the transaction
	// that waited; [Fence.WithTx] repeats it, which costs time but not the guarantees.
	//
	// A holder that is paused with a guarded transaction open blocks the next one, and the end of its lease does not end the
	// transaction. idle_in_transaction_session_timeout does; lock_timeout bounds the wait for it. Tested on PostgreSQL 15.
	//
	// PgBouncer may pool by transaction, as a guard and what it protects are one, but not by statement. pgx prepares statements
	// by default, which takes PgBouncer 1.21 with max_prepared_statements above 0, or else fails with 42P05: then set
	// default_query_exec_mode=exec, or simple_protocol. Give the timeouts above to the role, by ALTER ROLE: a SET goes to
	// whatever session there is.
	Postgres Dialect = iota + 1

	// MySQL is MySQL and MariaDB. The guard's table must be InnoDB, and so must the tables that are written. The default,
	// REPEATABLE READ, is as good as READ COMMITTED. With innodb_snapshot_isolation MariaDB fails the transaction that
	// waited at the guard, and WithTx repeats it.
	//
	// innodb_lock_wait_timeout (50 s by default) bounds the wait for a holder that is paused with a guarded transaction open.
	// wait_timeout ends idle sessions, and on MariaDB idle_write_transaction_timeout ends idle transactions.
	//
	// Where the first transaction of a resource is rolled back, those that wait for it may deadlock: InnoDB had them wait for a
	// row that is gone. WithTx repeats the one that fails; BeginTx and gormfence do not.
	//
	// Write to one node of a cluster that takes writes on several (Galera, group replication with several primaries): a guard
	// whose token is there already changes nothing, and so meets nothing on the other nodes.
	//
	// Tested on MariaDB 10.11. The statements are MySQL's too, and have not been run on it.
	MySQL

	// SQLite is SQLite 3.35 or later. Open the database with BEGIN IMMEDIATE (modernc.org/sqlite and glebarez:
	// _txlock=immediate) and a busy_timeout: without them, transactions that meet are refused rather than made to wait, and
	// are repeated. WAL will do, and so will a rollback journal.
	//
	// busy_timeout bounds the wait for a paused holder, and nothing ends the transaction of a paused process. The context
	// bounds the wait too, but modernc.org/sqlite does not look at the context while it waits. A write to a second file
	// needs a guard there: in WAL mode SQLite does not commit to both files as one.
	SQLite
)

func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "Postgres"
	case MySQL:
		return "MySQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", uint8(d))
}

// quote writes an identifier that validName has let pass, schema and all. SQLite takes MySQL's quotes too, and takes a
// name that it does not know for a string between its own: a misspelt column would be a value.
func (d Dialect) quote(name string) string {
	q := "`"
	if d == Postgres {
		q = `"`
	}
	return q + strings.ReplaceAll(name, ".", q+"."+q) + q
}

// statements are those of one dialect and table.
//
// To guard is to raise the row to the larger of what it has and the token, and to take back the result, with the
// row locked until the transaction ends. A token is stale if the result is larger. The obvious alternatives
// all let a stale holder through: a SELECT that locks nothing, a sub-select in the write's own WHERE,
// FOR KEY SHARE; and the number of affected rows cannot tell equal, stale and new apart on MySQL.
type statements struct {
	create string
	raise  string // resource, token: the result, below 0 where the snapshot may be older than what others of an older token wrote
	read   string // hex of the resource, resource: the result, where raise does not return it
	share  string // as read, or resource alone: locks the row for transactions beside others of its kind; empty if there is no such lock
	look   string // resource: without a lock, for monitoring
	old    string // resource, token, token: the names of the next rows between the tokens
}

func (d Dialect) statements(table string) statements {
	table = d.quote(table)
	old := `SELECT resource FROM ` + table + ` WHERE resource > ? AND token >= ? AND token < ? ORDER BY resource LIMIT ` + strconv.Itoa(pruneBatch)
	switch d {
	case Postgres:
		turn := `hashtextextended($1::text, '` + table + `'::regclass::oid::bigint)`
		tag := "$sqlfence$"
		for strings.Contains(table, tag) { // names have dollars, and this one would end the body
			tag = tag[:len(tag)-1] + "_$"
		}
		return statements{
			// CREATE TABLE IF NOT EXISTS alone fails with a unique violation in the catalogue when two
			// sessions run it at once, hence the advisory lock; and it wants the right to create tables even
			// where there is nothing to create, hence to_regclass. Rows are updated in place and often: the
			// free part of each page keeps the index out of it.
			create: `DO ` + tag + ` BEGIN
  IF to_regclass('` + table + `') IS NULL THEN
    PERFORM pg_advisory_xact_lock(7236851450173489251);
    CREATE TABLE IF NOT EXISTS ` + table + ` (
      resource text COLLATE "C" PRIMARY KEY,
      token bigint NOT NULL CHECK (token > 0)
    ) WITH (fillfactor = 70);
  END IF;
END ` + tag,
			// A share of a row is granted past those who wait to write it: with enough of them a new holder would wait for ever.
			// The queue of an advisory lock is fair, and so it is in front of the row. It is for the turn alone. What
			// shuts a stale holder out is the row, also where two names share a hash or a program does not take the lock.
			//
			// Those who share the row do not change it, so that nothing fails a transaction whose snapshot was taken by this
			// statement, before it waited for them. At REPEATABLE READ it would go on without what they have committed. What
			// they leave is the row's xmax, until it is raised again: 0, or where the raise met a conflict its own number. The
			// number of a group of sharers is counted apart from those of transactions, and could be the same for once.
			raise: `WITH turn AS MATERIALIZED (SELECT true AS mine FROM pg_advisory_xact_lock(` + turn + `))` +
				`, seen AS MATERIALIZED (SELECT true AS shared FROM ` + table + ` AS f WHERE f.resource = $1::text AND f.token < $2::bigint` +
				` AND f.xmax::text NOT IN ('0', f.xmin::text) AND (SELECT mine FROM turn)` +
				` AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted'))` +
				` INSERT INTO ` + table + ` AS f (resource, token) SELECT $1::text, $2::bigint FROM turn LEFT JOIN seen ON true` +
				` ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token)` +
				` RETURNING CASE WHEN EXISTS (SELECT FROM seen) THEN -token ELSE token END`,
			// The wait for the turn is over before the row is locked, and what is locked is its newest version: at READ
			// COMMITTED it is read anew, at other levels PostgreSQL fails a statement that finds one newer than its snapshot.
			share: `SELECT token FROM ` + table + ` WHERE resource = $1` +
				` AND (SELECT true FROM pg_advisory_xact_lock_shared(` + turn + `)) FOR SHARE`,
			look: `SELECT token FROM ` + table + ` WHERE resource = $1`,
			old: `SELECT resource FROM ` + table + ` WHERE resource > $1 AND token >= $2 AND token < $3` +
				` ORDER BY resource LIMIT ` + strconv.Itoa(pruneBatch),
		}
	case MySQL:
		return statements{
			create: `CREATE TABLE IF NOT EXISTS ` + table + ` (
  resource VARBINARY(512) NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL
) ENGINE=InnoDB`,
			raise: `INSERT INTO ` + table + ` (resource, token) VALUES (?, ?)` +
				` ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))`,
			// FOR UPDATE reads what is committed. Without it the statement reads the transaction's snapshot. The row is
			// looked at for its name, because a connection whose character_set_connection is not that of the
			// client stores other bytes, "?" for all that it cannot say: then the guard fails.
			read: `SELECT IF(HEX(resource) = ?, token, 0) FROM ` + table + ` WHERE resource = ? FOR UPDATE`,
			// InnoDB has whoever wants a share wait behind one that waits to write.
			share: `SELECT IF(HEX(resource) = ?, token, 0) FROM ` + table + ` WHERE resource = ? LOCK IN SHARE MODE`,
			look:  `SELECT token FROM ` + table + ` WHERE resource = ?`,
			old:   old,
		}
	default:
		return statements{
			// A text in an INTEGER column would compare as larger than every number.
			create: `CREATE TABLE IF NOT EXISTS ` + table + ` (
  resource TEXT NOT NULL PRIMARY KEY,
  token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0)
) WITHOUT ROWID`,
			raise: `INSERT INTO ` + table + ` (resource, token) VALUES (?, ?)` +
				` ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token) RETURNING token`,
			look: `SELECT token FROM ` + table + ` WHERE resource = ?`,
			old:  old,
		}
	}
}

// rowToken selects the fence column of one row of a table of the program, NULL if it is no number, and locks the row where the
// dialect has row locks. A text has been compared as a text by the statement before, which shows in the type alone.
func (d Dialect) rowToken(r Row) string {
	fence, from := d.quote(r.Fence), " FROM "+d.quote(r.Table)+" WHERE "+d.quote(r.Key)+" = "
	switch d {
	case Postgres: // not pg_typeof, which names a domain
		return "SELECT CASE jsonb_typeof(to_jsonb(" + fence + ")) WHEN 'number' THEN " + fence + " END" + from + "$1 FOR UPDATE"
	case MySQL: // HEX takes a number for a number, and a text for bytes
		return "SELECT IF(HEX(" + fence + ") = HEX(CONCAT(" + fence + ")), NULL, " + fence + ")" + from + "? FOR UPDATE"
	default:
		return "SELECT CASE typeof(" + fence + ") WHEN 'integer' THEN " + fence + " END" + from + "?"
	}
}

// validName tells whether a name is safe to quote: words of letters, digits, _ and $, with dots between them.
func validName(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || len(part) > maxName || '0' <= part[0] && part[0] <= '9' {
			return false
		}
		for _, c := range part {
			if c != '_' && c != '$' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
				return false
			}
		}
	}
	return true
}
