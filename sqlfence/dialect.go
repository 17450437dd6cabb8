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
	// Postgres is PostgreSQL 11 or later, tested on 15. Use READ COMMITTED, its default: a transaction that meets another one
	// waits at the guard, and then sees all that the other one wrote. At REPEATABLE READ and SERIALIZABLE PostgreSQL fails it
	// instead, and [Fence.WithTx] repeats it, which only costs time.
	//
	// idle_in_transaction_session_timeout ends the transaction of a paused holder; lock_timeout bounds the wait of the next.
	//
	// PgBouncer can pool by transaction, but not by statement. pgx prepares statements, which takes PgBouncer 1.21 or later with
	// max_prepared_statements above 0, or else a default_query_exec_mode of exec or simple_protocol (42P05). Set the timeouts with
	// ALTER ROLE, because a SET behind PgBouncer reaches an arbitrary session.
	Postgres Dialect = iota + 1

	// MySQL is MySQL and MariaDB, tested on MariaDB 10.11. The statements are valid on MySQL, but have not been run there. All
	// tables must be InnoDB. REPEATABLE READ, the default, is as good as READ COMMITTED. With innodb_snapshot_isolation, MariaDB
	// fails a transaction that waited at the guard, and WithTx repeats it. A guard sets the session's LAST_INSERT_ID().
	//
	// innodb_lock_wait_timeout (default: 50 s) bounds the wait for a paused holder. wait_timeout ends idle sessions, and on
	// MariaDB idle_write_transaction_timeout ends idle transactions.
	//
	// If the first transaction of a resource is rolled back, those that wait for it can deadlock, because InnoDB made them wait
	// for a row that is gone. WithTx repeats the one that fails; BeginTx and gormfence do not.
	//
	// In a cluster that takes writes on several nodes (Galera, group replication), write to one: a guard whose token is already
	// in the row changes nothing, so it conflicts with nothing on the others.
	MySQL

	// SQLite is SQLite 3.35 or later, with WAL or a rollback journal. Open the database with a busy_timeout and BEGIN
	// IMMEDIATE (modernc.org/sqlite and glebarez: _txlock=immediate). Without them, a transaction that meets another one fails
	// instead of waiting, and WithTx repeats it.
	//
	// busy_timeout bounds the wait for a paused holder, whose transaction nothing ends. The context bounds it too, except with
	// modernc.org/sqlite, which ignores the context while it waits. A second database file needs a guard of its own, because
	// SQLite in WAL mode does not commit both files together.
	//
	// With a rollback journal, COMMIT waits for the readers of the file, and fails when busy_timeout is over, as it does for a
	// violated deferred constraint. SQLite leaves the transaction open then. A Fence rolls it back, but glebarez/sqlite (v1.11)
	// and modernc.org/sqlite before v1.46.1 do not. With those, one that no Fence commits, or that is ent's, can stay open in
	// the pool. It keeps other writers out, and what its connection writes next is reported as written, but is not in the file.
	// Use WAL there, and no deferred constraints.
	//
	// A Fence cannot commit while a query that writes still has open rows: close them.
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
	create  string
	raise   string // resource, token, with read hex of the resource: the row's token, see ahead; negated if the snapshot is old
	advance string // as raise, and lets transactions share the row
	read    string // hex of the resource, resource: the row's token, see ahead; empty if raise always returns it
	share   string // resource, token; or as read: the row's token; locks the row together with others; empty without such a lock
	look    string // resource: the row's token, without a lock, for monitoring
	old     string // resource, token, token: the next resources whose tokens are between the two
}

func (d Dialect) statements(table string, anyToken bool) statements {
	table = d.quote(table)
	token := d.ahead("token", anyToken)
	old := `SELECT resource FROM ` + table + ` WHERE resource > ? AND token >= ? AND token < ? ORDER BY resource LIMIT ` + strconv.Itoa(pruneBatch)
	switch d {
	case Postgres:
		turn := `hashtextextended($1::text, '` + table + `'::regclass::oid::bigint)`
		tag := "$sqlfence$"
		for strings.Contains(table, tag) { // names have dollars, and this one would end the body
			tag = tag[:len(tag)-1] + "_$"
		}
		// PostgreSQL grants a share of a row ahead of transactions that wait to write it. With enough sharers a new holder would
		// wait forever. The queue of an advisory lock is fair, so it stands in front of the row. It only decides whose turn it
		// is. What shuts a stale holder out is the row, even if two names share a hash or a program does not take the advisory
		// lock.
		//
		// A transaction can take its snapshot with this statement, and then wait. At REPEATABLE READ and SERIALIZABLE it goes on
		// without what the transactions that it waited for committed. Those that raised the row make it fail, because they left
		// a version of the row that is newer than its snapshot. Sharers leave the row as it is. So the row says, in parallel,
		// that transactions with its token may share it:
		//
		//   - advance sets it, in a transaction that commits before the first of them shares the row.
		//   - A newer token clears it, and gets its own token negated at those levels. It has the row, so all sharers have ended
		//     and no other will begin; but only a transaction that begins after this one has ended surely sees what they wrote.
		//   - A rollback restores it, so the next holder is told the same again. The row's xmax would not do in its place: a raise
		//     that was rolled back and another program's lock leave their number there, and VACUUM clears it.
		//   - Prune deletes it with the row. See there for a transaction that began before and waits meanwhile.
		//
		// The sub-select reads the row as the snapshot has it. That is the version that the statement replaces: with any other
		// the statement fails, unless the row was pruned meanwhile. At READ COMMITTED later statements have newer snapshots.
		raise := func(parallel string) string {
			return `INSERT INTO ` + table + ` AS f (resource, token, parallel) SELECT $1::text, $2::bigint, ` + parallel +
				` FROM pg_advisory_xact_lock(` + turn + `) ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token),` +
				` parallel = EXCLUDED.parallel OR f.parallel AND f.token >= EXCLUDED.token RETURNING (` + token + `) * CASE` +
				` WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN 1` +
				` WHEN EXISTS (SELECT FROM ` + table + ` AS s WHERE s.resource = $1::text AND s.token < $2::bigint AND s.parallel) THEN -1 ELSE 1 END`
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
      parallel boolean NOT NULL DEFAULT false,
      token bigint NOT NULL CHECK (token > 0)
    ) WITH (fillfactor = 70);
  END IF;
END ` + tag,
			raise:   raise("false"),
			advance: raise("true"),
			// The wait for the turn ends before the row is locked, and the newest version of the row is locked: at READ
			// COMMITTED the row is read again; at other levels PostgreSQL fails a statement that finds a version newer than its
			// snapshot. A row that says nothing of sharers is not shared, so it is behind any token.
			share: `SELECT CASE WHEN parallel OR token > $2::bigint THEN token ELSE 0 END FROM ` + table + ` WHERE resource = $1` +
				` AND (SELECT true FROM pg_advisory_xact_lock_shared(` + turn + `)) FOR SHARE`,
			look: `SELECT token FROM ` + table + ` WHERE resource = $1`,
			old: `SELECT resource FROM ` + table + ` WHERE resource > $1 AND token >= $2 AND token < $3` +
				` ORDER BY resource LIMIT ` + strconv.Itoa(pruneBatch),
		}
	case MySQL:
		// What LAST_INSERT_ID is given comes back with the server's OK, without a statement that reads it. The name in the row
		// is compared too. A connection whose character_set_connection differs from the client's stores other bytes, and "?"
		// for what it cannot represent. The guard fails then.
		newer := "GREATEST(token, VALUES(token))"
		raise := `INSERT INTO ` + table + ` (resource, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = ` + newer +
			` + 0 * LAST_INSERT_ID(IF(HEX(resource) = ?, ` + d.ahead(newer, anyToken) + `, 0))`
		return statements{
			create: `CREATE TABLE IF NOT EXISTS ` + table + ` (
  resource VARBINARY(512) NOT NULL PRIMARY KEY,
  token BIGINT NOT NULL
) ENGINE=InnoDB`,
			raise:   raise,
			advance: raise,
			// A row that raise has inserted is read, with what the table made of it. FOR UPDATE reads what is committed; without
			// it the statement would read the transaction's snapshot.
			read: `SELECT IF(HEX(resource) = ?, ` + token + `, 0) FROM ` + table + ` WHERE resource = ? FOR UPDATE`,
			// In InnoDB a transaction that wants a share waits behind one that waits to write.
			share: `SELECT IF(HEX(resource) = ?, token, 0) FROM ` + table + ` WHERE resource = ? LOCK IN SHARE MODE`,
			look:  `SELECT token FROM ` + table + ` WHERE resource = ?`,
			old:   old,
		}
	default:
		raise := `INSERT INTO ` + table + ` (resource, token) VALUES (?, ?)` +
			` ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token) RETURNING ` + token
		return statements{
			// A text in an INTEGER column would compare as larger than every number.
			create: `CREATE TABLE IF NOT EXISTS ` + table + ` (
  resource TEXT NOT NULL PRIMARY KEY,
  token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0)
) WITHOUT ROWID`,
			raise:   raise,
			advance: raise,
			look:    `SELECT token FROM ` + table + ` WHERE resource = ?`,
			old:     old,
		}
	}
}

// ahead adds maxToken to a token that is more than an hour ahead of the database's clock, so that a statement that reads a
// token also says whether to believe it.
func (d Dialect) ahead(token string, anyToken bool) string {
	if anyToken {
		return token
	}
	now := "UNIX_TIMESTAMP()"
	switch d {
	case Postgres:
		now = "extract(epoch FROM statement_timestamp())::bigint"
	case SQLite:
		now = "CAST(strftime('%s', 'now') AS INTEGER)"
	}
	return token + " + CASE WHEN " + token + " > (" + now + " + 3600) * 1000000 THEN " + strconv.FormatInt(maxToken, 10) + " ELSE 0 END"
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
