package gormfence

import (
	"strings"
	"testing"
)

func TestReads(t *testing.T) {
	const all = "postgres mysql sqlite"
	for _, tt := range []struct {
		dialects string
		reads    []string
		writes   []string
	}{
		{all, []string{
			"",
			"SELECT 1",
			"SELECT 1;",
			"SELECT 1; SELECT 2",
			" \n-- UPDATE it\nselect * from items",
			"SELECT 1 -- UPDATE it\r\nFROM items -- DELETE",
			"/* DELETE */ SELECT 1 /**/ FROM items /* it's INTO */",
			"SELECT 1 --",
			"(SELECT 1) UNION (SELECT 2)",
			"SELECT * FROM items FOR UPDATE",
			"SELECT * FROM items WHERE (id = ?) FOR UPDATE",
			"SELECT key FROM items ORDER BY key FOR NO KEY UPDATE SKIP LOCKED",
			"SELECT replace(status, 'a', 'b'), updated_at FROM items",
			"SELECT 'INTO', \"INTO\", `INTO`",
			`SELECT "items"."id" AS "delete" FROM "items" WHERE "items"."into" = 'INTO'`,
			"SELECT 'it''s INTO', '', 'x'",
			`SELECT * FROM items WHERE status LIKE '50\%' ESCAPE '\'`,
			`SELECT 'it\\s INTO', '\', '\\'`,
			"SELECT data->'tags'->>0, data #>> '{a,b}', data @> '{\"into\": [1]}' FROM items WHERE data->>'$.into[0]' = ?",
			"SELECT $1::text, 1e5, 0x1F, 1.5e-3 FROM items WHERE id = $1 OR id = @id OR id = ?",
			"WITH x AS (SELECT 1) SELECT * FROM x",
			"WITH x AS (SELECT 1) SELECT * FROM x FOR UPDATE",
			"WITH x AS (SELECT 1) SELECT * FROM x FOR NO KEY UPDATE",
			"VALUES (1)",
			"SHOW search_path",
			"PRAGMA table_info('items')",
			"EXPLAIN DELETE FROM items",
			"EXPLAIN (FORMAT json) SELECT * FROM items WHERE id = 'x'",
			"SET search_path = app",
			"SAVEPOINT sp1",
			"RELEASE SAVEPOINT sp1",
			"ROLLBACK TO SAVEPOINT sp1",
		}, []string{
			"UPDATE items SET status = 'x'",
			"  insert into items VALUES (1)",
			"DELETE FROM items",
			"REPLACE INTO items VALUES (1)",
			"CREATE TABLE t (n int)",
			"CALL f()",
			"DO $$ BEGIN END $$",
			"COMMIT",
			"ROLLBACK",
			"ROLLBACK AND CHAIN",
			"SELECT * INTO copy FROM items",
			"SELECT 1; DELETE FROM items",
			"SELECT ';'; UPDATE items SET id = 1",
			"WITH x AS (UPDATE items SET id = 1 RETURNING id) SELECT id FROM x",
			"(WITH x AS (DELETE FROM items RETURNING id) SELECT id FROM x)",
			"WITH x AS (SELECT 1) INSERT INTO items SELECT * FROM x",
			"WITH x AS (SELECT 1) MERGE INTO items USING x ON true",
			"WITH x AS (SELECT id AS key FROM items ORDER BY key) UPDATE items SET status = 'x'",
			"WITH RECURSIVE x AS (SELECT 1) SEARCH DEPTH FIRST BY id SET key UPDATE items SET id = 1",
			"EXPLAIN ANALYZE DELETE FROM items",
			"EXPLAIN ANALYSE DELETE FROM items",
			"EXPLAIN (ANALYSE) DELETE FROM items",
			`EXPLAIN (VERBOSE, "analyze") DELETE FROM items`,
			"EXPLAIN FORMAT=JSON ANALYZE DELETE FROM items",
			"EXPLAIN (ANALYZE) CREATE TABLE t AS SELECT 1",
			"SET STATEMENT max_statement_time = 1 FOR DELETE FROM items",
			"SET/**/STATEMENT max_statement_time = 1 FOR DELETE FROM items",
			"SET /*!100100 STATEMENT*/ max_statement_time = 1 FOR DELETE FROM items",
			"SET /*M!100100STATEMENT*/ max_statement_time = 1 FOR DELETE FROM items",
			"WITH x AS (SELECT 1) /*!50000DELETE*/ FROM items",
			"SELECT * FROM items /*! INTO OUTFILE 'x' */",
			"WITH x AS (/* /* */ ' */ DELETE FROM items RETURNING id /* ' */) SELECT * FROM x",
			"WITH x AS ( -- all\rDELETE FROM items RETURNING id) SELECT * FROM x",
			"SELECT 1INTO copy",
			"SELECT 1e5INTO copy",
			"SELECT $1INTO copy",
			"SELECT 'no end",
			"SELECT 1 /* no end",
			`SELECT 'a\' INTO copy FROM items --'`,
			`SELECT 1; DELETE FROM items; SELECT 'it\'s'`,
			"SELECT `a\\` INTO copy FROM items --`",
		}},
		{"postgres", []string{
			`SELECT E'it\'s INTO' || ' INTO ', 'x'`,
			`SELECT E'it''s INTO\\' FROM items`,
			"SELECT ARRAY['it''s', '--'], tags[1], '{}'::text[] FROM items WHERE status = ANY(ARRAY['a', 'b'])",
		}, []string{
			"WITH a AS (SELECT $$it's$$::text AS n), d AS (DELETE FROM items RETURNING id) SELECT n, $$that's$$ FROM a, d",
			"WITH a AS (SELECT $é$it's$é$ AS n), d AS (DELETE FROM items RETURNING id) SELECT n, $é$that's$é$ FROM a, d",
			"WITH a AS (SELECT E'a'\n'\\'' AS n), d AS (DELETE FROM items WHERE status <> '') SELECT 1",
			// Strings of both kinds, which neither setting alone tells apart.
			`WITH a AS (SELECT 'C:\' AS "c'", E'\'' AS n), d AS (DELETE FROM items RETURNING id) SELECT n AS "y'" FROM a, d -- "`,
			`WITH a AS (SELECT 'C:\' AS "c'", E'a'` + "\n" + `'\'' AS n), d AS (DELETE FROM items RETURNING id) SELECT n AS "y'" FROM a, d -- "`,
			`WITH a AS (SELECT 'C:\' AS "c'", E'a' --` + "\n" + `'\'' AS n), d AS (DELETE FROM items RETURNING id) SELECT n AS "y'" FROM a, d -- "`,
		}},
		{"mysql", []string{
			`SELECT 'it\'s INTO'`,
			`SELECT "it\"s INTO"`,
			"SELECT 1 # it's INTO\nFROM items",
			"SELECT 5 -- 1; DELETE FROM items",
		}, []string{
			`SELECT 'it\'s ' INTO @x`,
			"SELECT 5--1; DELETE FROM items",
			"SELECT 1 # it's\n; DELETE FROM items # it's",
			`SELECT '\'; DELETE FROM items WHERE status <> '\'`,
			`SELECT '\'; DELETE FROM items WHERE status <> "'" # "`, // NO_BACKSLASH_ESCAPES
			`SELECT '\'; DELETE FROM items; SELECT '`,
			`SELECT "\", '\''; DELETE FROM items # "`, // ANSI_QUOTES
		}},
		{"sqlite", []string{
			"SELECT [id], [it] FROM [items]",
		}, []string{
			"WITH x AS (SELECT id AS for FROM items ORDER BY for) UPDATE items SET status = 'x'",
			"WITH c AS (SELECT 1 AS [it's]) DELETE FROM items WHERE status <> [it's]",
			"WITH c AS (SELECT 1 AS [it--]) DELETE FROM items",
			"WITH c AS (SELECT 1 AS [/*]) DELETE FROM items WHERE 1 <> (SELECT 2 AS [*/])",
		}},
	} {
		for dialect := range strings.FieldsSeq(tt.dialects) {
			for i, query := range append(tt.reads, tt.writes...) {
				if got, want := reads(query, dialect), i < len(tt.reads); got != want {
					t.Errorf("%s, %s: got %t, want %t", dialect, query, got, want)
				}
			}
		}
	}
}
