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
	// Postgres is PostgreSQL 11 or later, tested on PostgreSQL 15. Use READ COMMITTED, its default: a transaction that meets
	// another one waits at the guard, and then sees everything that the other one wrote. At REPEATABLE READ and SERIALIZABLE
	// PostgreSQL fails the transaction that waited. [Fence.WithTx] repeats it, which costs time but weakens no guarantee.
	//
	// A holder that is paused in a guarded transaction blocks the next one. The end of its lease does not end the transaction,
	// but idle_in_transaction_session_timeout does. lock_timeout bounds the wait of the next holder.
	//
	// PgBouncer can pool by transaction, because a guard and what it protects are one transaction. It must not pool by
	// statement. pgx prepares statements by default, which takes PgBouncer 1.21 or later with max_prepared_statements above 0.
	// Otherwise they fail with 42P05: set default_query_exec_mode to exec or simple_protocol. Set the timeouts above on the
	// role, with ALTER ROLE, because a SET behind PgBouncer reaches an arbitrary session.
	Postgres Dialect = iota + 1

	// MySQL is MySQL and MariaDB. It is tested on MariaDB 10.11; the statements are valid on MySQL too, but have not been run
	// there. The table of guard rows must be InnoDB, and so must the tables that are written. The default isolation level,
	// REPEATABLE READ, is as good as READ COMMITTED. With innodb_snapshot_isolation, MariaDB fails a transaction that waited
	// at the guard, and WithTx repeats it.
	//
	// innodb_lock_wait_timeout (default: 50 s) bounds the wait for a holder that is paused in a guarded transaction.
	// wait_timeout ends idle sessions, and on MariaDB idle_write_transaction_timeout ends idle transactions.
	//
	// If the first transaction of a resource is rolled back, the transactions that wait for it can deadlock, because InnoDB
	// made them wait for a row that is gone. WithTx repeats the one that fails; BeginTx and gormfence do not.
	//
	// In a cluster that takes writes on several nodes (Galera, group replication with several primaries), write to one node.
	// A guard whose token is already in the row changes nothing, so it conflicts with nothing on the other nodes.
	MySQL

	// SQLite is SQLite 3.35 or later, with WAL or a rollback journal. Open the database with a busy_timeout and BEGIN
	// IMMEDIATE (modernc.org/sqlite and glebarez: _txlock=immediate). Without them, a transaction that meets another one fails
	// instead of waiting, and WithTx repeats it.
	//
	// busy_timeout bounds the wait for a paused holder. Nothing ends the transaction of a paused process. The context bounds
	// the wait too, except with modernc.org/sqlite, which ignores the context while it waits. A write to a second database
	// file needs a guard in that file, because SQLite in WAL mode does not commit both files together.
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

// quote quotes an identifier that validName has accepted, with its schema. SQLite gets MySQL's quotes: it takes an unknown
// name in double quotes for a string, so a misspelt column would be a value.
func (d Dialect) quote(name string) string {
	q := "`"
	if d == Postgres {
		q = `"`
	}
	return q + strings.ReplaceAll(name, ".", q+"."+q) + q
}

// statements are those of one dialect and table.
//
// A guard raises the row to the larger of its token and the holder's, reads back the result, and keeps the row locked until
// the transaction ends. The holder's token is stale if the result is larger. The obvious alternatives all let a stale
// holder through: a SELECT that locks nothing, a sub-select in the write's own WHERE, FOR KEY SHARE. The number of affected
// rows does not tell equal, stale and new tokens apart on MySQL.
//
// The comments name the arguments, and then the result.
type statements struct {
	create string
	raise  string // resource, token: the row's token; negated if the snapshot may lack what holders of older tokens wrote
	read   string // hex of the resource, resource: the row's token; empty if raise returns it
	share  string // as read, or resource alone: the row's token; locks the row together with others; empty without such a lock
	look   string // resource: the row's token, without a lock, for monitoring
	old    string // resource, token, token: the next resources whose tokens are between the two
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
			// CREATE TABLE IF NOT EXISTS alone fails with a unique violation in the catalog if two sessions run it at once,
			// hence the advisory lock. It also needs the right to create tables even if the table exists, hence to_regclass.
			// Rows are updated often: free space in each page lets that happen without touching the index.
			create: `DO ` + tag + ` BEGIN
  IF to_regclass('` + table + `') IS NULL THEN
    PERFORM pg_advisory_xact_lock(7236851450173489251);
    CREATE TABLE IF NOT EXISTS ` + table + ` (
      resource text COLLATE "C" PRIMARY KEY,
      token bigint NOT NULL CHECK (token > 0)
    ) WITH (fillfactor = 70);
  END IF;
END ` + tag,
			// PostgreSQL grants a share of a row ahead of transactions that wait to write it. With enough sharers a new holder
			// would wait forever. The queue of an advisory lock is fair, so it stands in front of the row. It only decides
			// whose turn it is. What shuts a stale holder out is the row, even if two names share a hash or a program does not
			// take the advisory lock.
			//
			// Sharers do not change the row. So nothing fails a transaction that took its snapshot with this statement, before
			// it waited for them, and at REPEATABLE READ it would go on without what they committed. But sharers leave their
			// mark in the row's xmax until the row is raised again. Without them xmax is 0, or, if the raise met a conflict, the
			// raise's own number. Groups of sharers are numbered apart from transactions, so by chance the two can be equal.
			raise: `WITH turn AS MATERIALIZED (SELECT true AS mine FROM pg_advisory_xact_lock(` + turn + `))` +
				`, seen AS MATERIALIZED (SELECT true AS shared FROM ` + table + ` AS f WHERE f.resource = $1::text AND f.token < $2::bigint` +
				` AND f.xmax::text NOT IN ('0', f.xmin::text) AND (SELECT mine FROM turn)` +
				` AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted'))` +
				` INSERT INTO ` + table + ` AS f (resource, token) SELECT $1::text, $2::bigint FROM turn LEFT JOIN seen ON true` +
				` ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token)` +
				` RETURNING CASE WHEN EXISTS (SELECT FROM seen) THEN -token ELSE token END`,
			// The wait for the turn ends before the row is locked, and the newest version of the row is locked: at READ
			// COMMITTED the row is read again; at other levels PostgreSQL fails a statement that finds a version newer than its
			// snapshot.
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
			// FOR UPDATE reads what is committed; without it the statement would read the transaction's snapshot. The name in
			// the row is compared too. A connection whose character_set_connection differs from the client's stores other
			// bytes, and "?" for what it cannot represent. The guard fails then.
			read: `SELECT IF(HEX(resource) = ?, token, 0) FROM ` + table + ` WHERE resource = ? FOR UPDATE`,
			// In InnoDB a transaction that wants a share waits behind one that waits to write.
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

// rowToken selects the fence column of one row of a table of the program, or NULL if the column is not a number. It locks
// the row if the dialect has row locks. If the column is a text, the program's statement has compared texts, which only the
// type reveals.
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

// validName reports whether a name is safe to quote: words of letters, digits, _ and $, with dots between them.
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
