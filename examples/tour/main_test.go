package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/examples/tour/internal/shop"
	"github.com/holdfast-go/holdfast/internal/servertest"
)

func init() { gin.SetMode(gin.ReleaseMode) } // as main does; programs run side by side here

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

// patient is for what takes a second: beyond it something hangs.
const patient = 90 * time.Second

// short is for tests. Redis is given a quarter of a lease to answer, a second at most, which a busy machine may need.
var short = size{lease: 4 * time.Second, payouts: 6, ticks: 3, jobs: 2}

// play runs the program in this process.
func play(t *testing.T, scenes []scene, env map[string]string, args ...string) run {
	t.Helper()
	var stdout, stderr output
	a := &app{stdout: &stdout, stderr: &stderr, scenes: scenes, size: short, getenv: func(k string) string { return env[k] }}
	status := a.run(t.Context(), args)
	return run{status, stdout.String(), stderr.String()}
}

func (r run) String() string {
	return fmt.Sprintf("status %d\n--- stdout\n%s--- stderr\n%s", r.status, r.stdout, r.stderr)
}

// only is a program of one act.
func only(a act) []scene { return []scene{{title: "Only this.", acts: []act{a}}} }

// acts returns some acts of the scene of that name, all if none is named. Those without the lock do damage on any machine.
func acts(name string, which ...int) scene {
	sc := scenes[slices.IndexFunc(scenes, func(sc scene) bool { return sc.name == name })]
	all := slices.Clone(sc.acts)
	sc.acts = nil
	for i, a := range all {
		if !a.locked {
			a.charge = meeting()
		}
		if len(which) == 0 || slices.Contains(which, i) {
			sc.acts = append(sc.acts, a)
		}
	}
	return sc
}

// meeting returns payments of which the first for each product lasts until another customer, who has read the same
// stock, pays for it too.
func meeting() shop.Charge {
	var mu sync.Mutex
	met := map[string]chan struct{}{}
	return func(ctx context.Context, product string) error {
		mu.Lock()
		second, later := met[product]
		if !later {
			second = make(chan struct{})
			met[product] = second
		} else if second != nil {
			close(second)
			met[product] = nil
		}
		mu.Unlock()
		if later {
			return shop.Pay(ctx, product)
		}
		select {
		case <-second:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

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
	r := play(t, []scene{acts("rush")}, nil, "-requests", "80", "-products", "2", "-stock", "10")
	if r.status != 0 {
		t.Fatalf("got %s", r)
	}
	row := r.row(t, "with the lock", "all")
	for column, want := range map[string]int{
		"requests": 80, "sold": 20, "refused": 60, "stock left": 0, "sold twice": 0,
	} {
		if got := number(t, row, column); got != want {
			t.Errorf("with the lock, %s: got %d, want %d", column, got, want)
		}
	}
	if got := number(t, row, "waited"); got < 20 {
		t.Errorf("%d requests waited, want most of 80", got)
	}
	row = r.row(t, "without the lock", "all")
	if got := number(t, row, "sold twice"); got < 1 {
		t.Errorf("without the lock %d units were sold twice, want some", got)
	}
	if got, want := number(t, row, "sold"), 20; got <= want {
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
	r := play(t, []scene{acts("rush", 1)}, nil, "-requests", "30", "-products", "10", "-stock", "50", "-replicas", "1")
	row := r.row(t, "with the lock", "all")
	if r.status != 0 || row["sold"] != "30" || row["refused"] != "0" || row["stock left"] != "470" {
		t.Errorf("got %s", r)
	}
}

// An act that claims to have the lock and has none stands for a lock that does not hold.
func TestBrokenInvariantMakesTheExitStatusOne(t *testing.T) {
	r := play(t, only(act{name: "with a broken lock", tables: "broken", play: rush, mustHold: true, charge: meeting()}), nil, "-requests", "20")
	if r.status != 1 || !strings.Contains(r.stderr, "sold already") {
		t.Errorf("got %s", r)
	}
}

func TestScenesAreChosenByName(t *testing.T) {
	for list, want := range map[string]string{"": "rush, paused, workers, cron", "paused": "paused", "cron,rush,cron": "rush, cron"} {
		chosen, err := choose(scenes, list)
		if got := names(chosen); err != nil || got != want {
			t.Errorf("-scene %q plays %s, %v, want %s", list, got, err, want)
		}
	}
	nothing := func(context.Context, *stage, act) (*result, error) { return &result{}, nil }
	r := play(t, []scene{
		{name: "a", title: "Scene a.", acts: []act{{play: nothing}}}, {name: "b", title: "Scene b.", acts: []act{{play: nothing}}},
	}, nil, "-scene", "b")
	if r.status != 0 || strings.Contains(r.stdout, "Scene a") || !strings.Contains(r.stdout, "1. Scene b") {
		t.Errorf("got %s", r)
	}
}

func TestServeShowsThePageUntilInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout, stderr output
	ended := make(chan int, 1)
	go func() {
		a := &app{stdout: &stdout, stderr: &stderr, scenes: scenes, getenv: func(string) string { return "" }}
		ended <- a.run(ctx, []string{"-serve", "-replicas", "1", "-products", "1"})
	}()
	address, url := regexp.MustCompile(`http://\S+/`), ""
	for began := time.Now(); url == ""; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patient {
			t.Fatalf("no address in %q, %q", stdout.String(), stderr.String())
		}
		url = address.FindString(stdout.String())
	}
	resp, err := http.Get(url + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), `"what":"acquired"`) {
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	cancel()
	if status := <-ended; status != 0 || !strings.Contains(stdout.String(), "units were sold, none of them twice") {
		t.Errorf("got %s", run{status, stdout.String(), stderr.String()})
	}
}

func TestExitStatusOfWhatCannotStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env    map[string]string
		args   []string
		status int
		stderr string
	}{
		"nothing at REDIS_ADDR":    {env: map[string]string{"REDIS_ADDR": "127.0.0.1:1"}, status: 1, stderr: "REDIS_ADDR: no Redis at 127.0.0.1:1"},
		"REDIS_ADDR is no URL":     {env: map[string]string{"REDIS_ADDR": "redis://u:secret@[x"}, status: 1, stderr: "REDIS_ADDR: neither host:port nor a redis:// URL"},
		"REDIS_ADDR of no Redis":   {env: map[string]string{"REDIS_ADDR": "http://x"}, status: 1, stderr: "REDIS_ADDR: neither host:port nor a redis:// URL"},
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
		"page with a scene":        {args: []string{"-serve", "-scene", "rush"}, status: 2, stderr: "plays none"},
		"no such scene":            {args: []string{"-scene", "rush,lunch"}, status: 2, stderr: `no scene is called "lunch": they are rush, paused, workers, cron`},
		"too many for a page":      {args: []string{"-serve", "-replicas", "13"}, status: 2, stderr: "12 replicas"},
		"no such address":          {args: []string{"-serve", "-addr", "127.0.0.1:99999"}, status: 1, stderr: "-addr: "},
		"help is not a wrong flag": {args: []string{"-h"}, status: 0, stderr: "-replicas"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := play(t, scenes, c.env, c.args...)
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
			stopped := acts("rush", 1)
			stopped.acts[0].charge = func(ctx context.Context, product string) error {
				cancel() // while others wait for the lock
				return shop.Pay(ctx, product)
			}
			a := &app{stdout: &stdout, stderr: &stderr, scenes: []scene{stopped}, getenv: func(k string) string { return env[k] }}
			status := a.run(ctx, []string{"-requests", "100", "-products", "1", "-stock", "100"})
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

// What the scenes say to a database is in the rush and in the second act of the paused replica.
func TestRealServers(t *testing.T) {
	t.Parallel()
	const informationSchema = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'holdfast%'"
	for name, c := range map[string]struct {
		start  func(testing.TB) string
		scenes []scene
	}{
		"Postgres": {servertest.Postgres, []scene{acts("rush"), acts("paused", 1)}},
		"MariaDB":  {servertest.MariaDB, []scene{acts("rush"), acts("paused", 1)}},
		"SQLite": {func(t testing.TB) string {
			return "sqlite://" + filepath.ToSlash(filepath.Join(t.TempDir(), "shop.db"))
		}, []scene{acts("rush"), acts("workers", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t)
			database := c.start(t)
			r := play(t, c.scenes, map[string]string{"REDIS_ADDR": "redis://" + server.Addr() + "/0", "DATABASE_URL": database},
				"-requests", "40", "-products", "2", "-stock", "5")
			row := r.row(t, "with the lock", "all")
			if r.status != 0 || row["sold"] != "10" || row["refused"] != "30" || row["sold twice"] != "0" {
				t.Errorf("got %s", r)
			}
			if n := number(t, r.row(t, "without the lock", "all"), "sold twice"); n < 1 {
				t.Errorf("no damage without the lock: %s", r)
			}
			if c.scenes[1].name == "paused" {
				checkFenced(t, r)
			} else {
				checkLocked(t, r)
			}
			servers, err := shop.OpenServers(t.Context(), server.Addr(), database)
			if err != nil {
				t.Fatal(err)
			}
			d, count := servers.Database, informationSchema
			if d.Driver == "sqlite" {
				count = "SELECT count(*) FROM sqlite_master"
			}
			checkTables(t, d.Driver, d.DSN, count)
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
		if !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(key, "asynqlock:deferred:"), "asynqlock:queues:"), "{"), "holdfast_tour_") {
			t.Errorf("key %q has not the prefix of the run", key)
		}
	}
}
