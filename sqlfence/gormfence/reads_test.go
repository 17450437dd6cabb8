package gormfence

import "testing"

func TestReads(t *testing.T) {
	for query, want := range map[string]bool{
		"":                                     true,
		"SELECT 1":                             true,
		" \n-- UPDATE it\nselect * from items": true,
		"/* DELETE */ SELECT 1":                true,
		"(SELECT 1) UNION (SELECT 2)":          true,
		"SELECT * FROM items FOR UPDATE":       true,
		"SELECT * FROM items FOR NO KEY UPDATE SKIP LOCKED":       true,
		"SELECT replace(status, 'a', 'b'), updated_at FROM items": true,
		"SELECT 'INTO', \"INTO\", `INTO`":                         true,
		"SELECT 'it''s INTO'":                                     true,
		`SELECT E'it\'s' || ' INTO '`:                             true,
		"SELECT 1;":                                               true,
		"SELECT 1; SELECT 2":                                      true,
		"WITH x AS (SELECT 1) SELECT * FROM x":                    true,
		"WITH x AS (SELECT 1) SELECT * FROM x FOR UPDATE":         true,
		"VALUES (1)":                          true,
		"SHOW search_path":                    true,
		"PRAGMA table_info('items')":          true,
		"EXPLAIN DELETE FROM items":           true,
		"SET search_path = app":               true,
		"SAVEPOINT sp1":                       true,
		"ROLLBACK TO SAVEPOINT sp1":           true,
		"UPDATE items SET status = 'x'":       false,
		"  insert into items VALUES (1)":      false,
		"DELETE FROM items":                   false,
		"REPLACE INTO items VALUES (1)":       false,
		"CREATE TABLE t (n int)":              false,
		"CALL f()":                            false,
		"DO $$ BEGIN END $$":                  false,
		"COMMIT":                              false,
		"SELECT * INTO copy FROM items":       false,
		"SELECT 1; DELETE FROM items":         false,
		"SELECT ';'; UPDATE items SET id = 1": false,
		"WITH x AS (UPDATE items SET id = 1 RETURNING id) SELECT id FROM x": false,
		"(WITH x AS (DELETE FROM items RETURNING id) SELECT id FROM x)":     false,
		"WITH x AS (SELECT 1) INSERT INTO items SELECT * FROM x":            false,
		"WITH x AS (SELECT 1) MERGE INTO items USING x ON true":             false,
		"EXPLAIN ANALYZE DELETE FROM items":                                 false,
		"EXPLAIN (ANALYZE) CREATE TABLE t AS SELECT 1":                      false,
		"SET STATEMENT max_statement_time = 1 FOR DELETE FROM items":        false,
		"SELECT 'no end":     false,
		"SELECT 1 /* no end": false,
		"SELECT * FROM items /*! INTO OUTFILE 'x' */": false,
		`SELECT 'a\' INTO copy FROM items --'`:        false, // as PostgreSQL reads it
	} {
		if got := reads(query, false); got != want {
			t.Errorf("%s: got %t, want %t", query, got, want)
		}
	}
	for query, want := range map[string]bool{
		`SELECT 'it\'s INTO'`:                   true,
		`SELECT "it\"s INTO"`:                   true,
		`SELECT 'it\'s ' INTO @x`:               false,
		"SELECT `a\\` INTO copy FROM items --`": false,
	} {
		if got := reads(query, true); got != want {
			t.Errorf("MySQL, %s: got %t, want %t", query, got, want)
		}
	}
}
