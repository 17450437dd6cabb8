package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servertest"
)

// output is what a run has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

type run struct {
	status         int
	stdout, stderr string
}

// play runs the program in this process.
func play(t *testing.T, scenes []scene, env map[string]string, args ...string) run {
	t.Helper()
	var stdout, stderr output
	a := &app{stdout: &stdout, stderr: &stderr, scenes: scenes, getenv: func(k string) string { return env[k] }}
	status := a.run(t.Context(), args)
	return run{status, stdout.String(), stderr.String()}
}

func (r run) String() string {
	return fmt.Sprintf("status %d\n--- stdout\n%s--- stderr\n%s", r.status, r.stdout, r.stderr)
}

// only is a program of one act.
func only(a act) []scene { return []scene{{title: "Only this.", acts: []act{a}}} }

// row is a line of the table that r printed, without its first column.
func (r run) row(t *testing.T, act, product string) map[string]string {
	t.Helper()
	_, text, _ := strings.Cut(r.stdout, "\n"+act+"\n")
	for text := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(text, "  "+product+" ")
		if !ok {
			continue
		}
		fields := strings.Fields(strings.ReplaceAll(rest, " s ", "s "))
		if len(fields) != len(columns) {
			t.Fatalf("got %d columns, want %d, in %q", len(fields), len(columns), text)
		}
		row := map[string]string{}
		for i, c := range columns {
			row[c] = fields[i]
		}
		return row
	}
	t.Fatalf("no row %q in act %q of\n%s", product, act, r)
	return nil
}

func number(t *testing.T, row map[string]string, column string) int {
	t.Helper()
	n, err := strconv.Atoi(row[column])
	if err != nil {
		t.Fatalf("column %q: %v", column, err)
	}
	return n
}

func TestRushShowsTheDamageAndThatTheLockPreventsIt(t *testing.T) {
	r := play(t, scenes[:1], nil)
	if r.status != 0 {
		t.Fatalf("got %s", r)
	}
	row := r.row(t, "with the lock", "all")
	for column, want := range map[string]int{
		"requests": 300, "sold": 80, "refused": 220, "stock left": 0, "sold twice": 0,
	} {
		if got := number(t, row, column); got != want {
			t.Errorf("with the lock, %s: got %d, want %d", column, got, want)
		}
	}
	if got := number(t, row, "waited"); got < 100 {
		t.Errorf("%d requests waited, want most of 300", got)
	}
	row = r.row(t, "without the lock", "all")
	if got := number(t, row, "sold twice"); got < 1 {
		t.Errorf("without the lock %d units were sold twice, want some", got)
	}
	if got, want := number(t, row, "sold"), 80; got <= want {
		t.Errorf("without the lock %d units were sold, want more than %d", got, want)
	}
	if strings.Contains(r.stdout, "\x1b") || strings.Contains(r.stdout, "\r") {
		t.Error("escape codes although the output is no terminal")
	}
	if r.stderr != "" {
		t.Errorf("got %q on stderr", r.stderr)
	}
	if t.Failed() {
		t.Log(r)
	}
}

func TestMoreStockThanCustomers(t *testing.T) {
	r := play(t, only(scenes[0].acts[1]), nil, "-requests", "30", "-products", "10", "-stock", "50", "-replicas", "1")
	row := r.row(t, "with the lock", "all")
	if r.status != 0 || row["sold"] != "30" || row["refused"] != "0" || row["stock left"] != "470" {
		t.Errorf("got %s", r)
	}
}

// An act that claims to have the lock and has none stands for a lock that does not hold.
func TestBrokenInvariantMakesTheExitStatusOne(t *testing.T) {
	r := play(t, only(act{name: "with a broken lock", tables: "broken", play: rush, mustHold: true}), nil)
	if r.status != 1 || !strings.Contains(r.stderr, "sold already") {
		t.Errorf("got %s", r)
	}
}

func TestExitStatusOfWhatCannotStart(t *testing.T) {
	for name, c := range map[string]struct {
		env    map[string]string
		args   []string
		status int
		stderr string
	}{
		"nothing at REDIS_ADDR":    {env: map[string]string{"REDIS_ADDR": "127.0.0.1:1"}, status: 1, stderr: "REDIS_ADDR: no Redis at 127.0.0.1:1"},
		"REDIS_ADDR is no URL":     {env: map[string]string{"REDIS_ADDR": "redis://u:secret@[x"}, status: 1, stderr: "REDIS_ADDR: not a redis:// URL"},
		"REDIS_ADDR of no Redis":   {env: map[string]string{"REDIS_ADDR": "http://x"}, status: 1, stderr: "REDIS_ADDR: not a redis:// URL"},
		"no postgres":              {env: map[string]string{"DATABASE_URL": "postgres://u:secret@127.0.0.1:1/x"}, status: 1, stderr: "DATABASE_URL: no database (PostgreSQL at 127.0.0.1:1)"},
		"no mysql":                 {env: map[string]string{"DATABASE_URL": "mysql://u:secret@127.0.0.1:1/x"}, status: 1, stderr: "DATABASE_URL: no database (MySQL or MariaDB at 127.0.0.1:1)"},
		"no such directory":        {env: map[string]string{"DATABASE_URL": "sqlite:///no/such/file"}, status: 1, stderr: "DATABASE_URL: no database (SQLite in /no/such/file)"},
		"sqlite with two slashes":  {env: map[string]string{"DATABASE_URL": "sqlite://file"}, status: 1, stderr: "three slashes"},
		"unknown database":         {env: map[string]string{"DATABASE_URL": "oracle://u:secret@x"}, status: 1, stderr: `unknown scheme "oracle"`},
		"DATABASE_URL is no URL":   {env: map[string]string{"DATABASE_URL": "postgres://u:secret@[x"}, status: 1, stderr: "DATABASE_URL: not a URL"},
		"unknown flag":             {args: []string{"-colour"}, status: 2, stderr: "-colour"},
		"argument":                 {args: []string{"now"}, status: 2, stderr: `"now"`},
		"no stock":                 {args: []string{"-stock", "0"}, status: 2, stderr: "at least 1"},
		"address without a page":   {args: []string{"-addr", "127.0.0.1:0"}, status: 2, stderr: "-addr is for -serve"},
		"page with a stock":        {args: []string{"-serve", "-stock", "3"}, status: 2, stderr: "plays none"},
		"too many for a page":      {args: []string{"-serve", "-replicas", "13"}, status: 2, stderr: "12 replicas"},
		"no such address":          {args: []string{"-serve", "-addr", "127.0.0.1:99999"}, status: 1, stderr: "-addr: "},
		"help is not a wrong flag": {args: []string{"-h"}, status: 0, stderr: "-replicas"},
	} {
		t.Run(name, func(t *testing.T) {
			r := play(t, nil, c.env, c.args...)
			if r.status != c.status || !strings.Contains(r.stderr, c.stderr) || strings.Contains(r.stderr, "secret") {
				t.Errorf("want status %d, %q and no password, got %s", c.status, c.stderr, r)
			}
		})
	}
}

func TestInterruptLeavesNothingBehind(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	file := filepath.Join(t.TempDir(), "shop.db")
	for name, env := range map[string]map[string]string{
		"embedded": nil,
		"file":     {"DATABASE_URL": "sqlite://" + filepath.ToSlash(file)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stdout, stderr output
			slow := scenes[0].acts[1]
			slow.play = func(ctx context.Context, st *stage, a act) (*result, error) {
				time.AfterFunc(300*time.Millisecond, cancel) // 1000 units at 4 ms at least
				return rush(ctx, st, a)
			}
			a := &app{stdout: &stdout, stderr: &stderr, scenes: only(slow), getenv: func(k string) string { return env[k] }}
			status := a.run(ctx, []string{"-requests", "2000", "-products", "1", "-stock", "1000"})
			r := run{status, stdout.String(), stderr.String()}
			if r.status != 130 || r.stderr != "tour: interrupted: with the lock: context canceled\n" {
				t.Errorf("got %s", r)
			}
		})
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("got %v, %v in the directory for temporary files, want nothing", left, err)
	}
	checkTables(t, "sqlite", "file:"+file, "SELECT count(*) FROM sqlite_master")
}

// checkTables checks that none of the program's tables is left.
func checkTables(t *testing.T, driver, dsn, count string) {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRowContext(t.Context(), count).Scan(&n); err != nil || n != 0 {
		t.Errorf("got %d tables, %v, want none left", n, err)
	}
}

func TestRealServers(t *testing.T) {
	const informationSchema = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'holdfast%'"
	for name, start := range map[string]func(testing.TB) string{
		"Postgres": servertest.Postgres,
		"MariaDB":  servertest.MariaDB,
		"SQLite": func(t testing.TB) string {
			return "sqlite://" + filepath.ToSlash(filepath.Join(t.TempDir(), "shop.db"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			database := start(t)
			scenes := slices.Clone(scenes[:3])
			scenes[2].acts = scenes[2].acts[:2] // the schedulers take their time, and no database
			r := play(t, scenes, map[string]string{"REDIS_ADDR": "redis://" + server.Addr() + "/0", "DATABASE_URL": database})
			row := r.row(t, "with the lock", "all")
			if r.status != 0 || row["sold"] != "80" || row["refused"] != "220" || row["sold twice"] != "0" {
				t.Errorf("got %s", r)
			}
			if n := number(t, r.row(t, "without the lock", "all"), "sold twice"); n < 1 {
				t.Errorf("no damage without the lock: %s", r)
			}
			checkPaused(t, r)
			checkWorkers(t, r)
			d, err := openDatabase(database)
			if err != nil {
				t.Fatal(err)
			}
			count := informationSchema
			if d.driver == "sqlite" {
				count = "SELECT count(*) FROM sqlite_master"
			}
			checkTables(t, d.driver, d.dsn, count)
			checkKeys(t, server)
		})
	}
}

// checkKeys checks that every key has the run's prefix and an end.
func checkKeys(t *testing.T, server *servertest.Server) {
	t.Helper()
	rdb := server.Client()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("got keys %q, %v, want the fences of the locks", keys, err)
	}
	for _, key := range keys {
		ttl, err := rdb.PTTL(t.Context(), key).Result()
		if err != nil || ttl <= 0 {
			t.Errorf("key %q: got time to live %v, %v", key, ttl, err)
		}
		if !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(key, "asynqlock:deferred:"), "{"), "holdfast_tour_") {
			t.Errorf("key %q has not the prefix of the run", key)
		}
	}
}
