package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/redis/go-redis/v9"
)

func init() { gin.SetMode(gin.ReleaseMode) } // as main does; programs run side by side here

// TestMain is a replica too, which startReplica starts. It ends with the test at the latest, as its input does.
func TestMain(m *testing.M) {
	if os.Getenv("REPLICA") == "" {
		os.Exit(m.Run())
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	log.Fatal(run(context.Background(), held{}))
}

// held is the output of a replica that never gets to its answer: it made an order, and goes on printing that.
type held struct{}

func (held) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("made ")) {
		select {}
	}
	return os.Stdout.Write(b)
}

// startReplica starts a process of its own, and returns where it listens and what kills it.
func startReplica(t *testing.T) (url string, kill func()) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = append(os.Environ(), "REPLICA=1"), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	})
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(line, "listening on ")
	if err != nil || !ok {
		t.Fatalf("got %q, %v, want where it listens", line, err)
	}
	return strings.TrimSpace(url), kill
}

// shop opens the database of the replicas that are started from here on.
func shop(t *testing.T) *sql.DB {
	t.Helper()
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	t.Setenv("DATABASE_URL", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "orders.db"))+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	db, err := sql.Open("sqlite", os.Getenv("DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func wantOrders(t *testing.T, db *sql.DB, want int) {
	t.Helper()
	if got := orders(t, db); got != want {
		t.Errorf("got %d orders, want %d", got, want)
	}
}

func orders(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM orders").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// await waits until it is so, or the test is at its end.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never was: %s", what)
		}
	}
}

type reply struct {
	status   int
	body     string
	replayed bool
	header   http.Header
}

func send(url, account, key, item string) (reply, error) {
	r, err := http.NewRequest(http.MethodPost, url+"/orders", strings.NewReader(item))
	if err != nil {
		return reply{}, err
	}
	r.Close = true // a replica that is killed leaves no connection behind
	if account != "" {
		r.SetBasicAuth(account, "secret")
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(body), resp.Header.Get("Idempotency-Replayed") == "true", resp.Header}, err
}

// insist sends the request as a client does: again, as long as another one is under way.
func insist(t *testing.T, url, account, key, item string) reply {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got, err := send(url, account, key, item)
		if err != nil || got.status == http.StatusConflict && time.Now().After(deadline) {
			t.Errorf("got %+v, %v, want an answer other than 409", got, err)
			return got
		}
		if got.status != http.StatusConflict {
			return got
		}
	}
}

func start(t *testing.T, replicas int) (program *exampletest.Program, urls []string) {
	t.Helper()
	program = exampletest.Start(t, exampletest.Replicas(replicas, run))
	for _, line := range program.Await(replicas, "listening on ") {
		urls = append(urls, strings.TrimPrefix(line, "listening on "))
	}
	return program, urls
}

func TestOneOrderForEachKey(t *testing.T) {
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	t.Setenv("REDIS_ADDR", "")
	t.Setenv("DATABASE_URL", "") // the embedded ones
	program, urls := start(t, 1)
	for _, step := range []struct {
		name, account, key, item string
		want                     reply
	}{
		{"first", "anna", `"k1"`, "lamp", reply{status: 201, body: "order 1\n"}},
		{"repeated", "anna", `"k1"`, "lamp", reply{status: 201, body: "order 1\n", replayed: true}},
		{"without quotes", "anna", "k1", "lamp", reply{status: 201, body: "order 1\n", replayed: true}},
		{"other payload", "anna", `"k1"`, "desk", reply{status: 422, body: `"title":"Idempotency-Key is already used"`}},
		{"no key", "anna", "", "lamp", reply{status: 400, body: "Idempotency-Key"}},
		{"no item", "anna", `"k2"`, "", reply{status: 400, body: "name an item"}},
		{"which did not use the key up", "anna", `"k2"`, "lamp", reply{status: 201, body: "order 2\n"}},
		{"same key of another account", "ben", `"k1"`, "desk", reply{status: 201, body: "order 3\n"}},
		{"nobody", "", `"k1"`, "lamp", reply{status: 401}},
		{"first again", "anna", `"k1"`, "lamp", reply{status: 201, body: "order 1\n", replayed: true}},
	} {
		got, err := send(urls[0], step.account, step.key, step.item)
		if err != nil || got.status != step.want.status || got.replayed != step.want.replayed || !strings.Contains(got.body, step.want.body) {
			t.Errorf("%s: got %+v, %v, want %+v", step.name, got, err, step.want)
		}
		if kind := got.header.Get("Content-Type"); (got.status == 400 && step.item != "" || got.status == 422) && !strings.HasPrefix(kind, "application/problem+json") {
			t.Errorf("%s: got a %s, want problem details", step.name, kind)
		}
	}
	program.Stop()
	if _, got, _ := strings.Cut(program.Output(), "\n"); got != "made order 1\nmade order 2\nmade order 3\n" {
		t.Errorf("it printed %q", got)
	}
}

func TestRepeatMeetsTheFirst(t *testing.T) {
	server, db := exampletest.Redis(t), shop(t)
	program, urls := start(t, 2)
	// A request of another replica is under way.
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	other, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := other.TryAcquire(t.Context(), holdfast.Key("create-order", "anna", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := send(urls[0], "anna", `"k1"`, "lamp"); err != nil || got.status != http.StatusConflict || got.header.Get("Retry-After") == "" {
		t.Errorf("got %+v, %v, want 409 with Retry-After", got, err)
	}
	wantOrders(t, db, 0)
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}

	// An impatient client, and both replicas.
	answers := make([]reply, 8)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = insist(t, urls[i%2], "anna", `"k1"`, "lamp") })
	}
	all.Wait()
	made := 0
	for _, got := range answers {
		if got.status != http.StatusCreated || got.body != "order 1\n" {
			t.Errorf("got %+v, want order 1", got)
		}
		if !got.replayed {
			made++
		}
	}
	if made != 1 {
		t.Errorf("got %d answers that are not replayed, want 1", made)
	}
	wantOrders(t, db, 1)
	if err := other.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	program.Stop()
}

func TestKilledBetweenCommitAndAnswer(t *testing.T) {
	server, db := exampletest.Redis(t), shop(t)
	url, kill := startReplica(t)
	answered := make(chan error, 1)
	go func() {
		_, err := send(url, "anna", `"k1"`, "lamp")
		answered <- err
	}()
	await(t, "the order committed", func() bool { return orders(t, db) == 1 })
	kill()
	if err := <-answered; err == nil {
		t.Fatal("the client has its answer: it was killed too late")
	}
	server.FastForward(time.Minute) // past the lease of the dead

	program, urls := start(t, 1)
	want := reply{status: http.StatusCreated, body: "order 1\n", replayed: true}
	for range 2 {
		got := insist(t, urls[0], "anna", `"k1"`, "lamp")
		if got.status != want.status || got.body != want.body || !got.replayed {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if got := insist(t, urls[0], "anna", `"k1"`, "desk"); got.status != http.StatusUnprocessableEntity {
		t.Errorf("with another payload: got %+v, want 422", got)
	}
	wantOrders(t, db, 1)
	program.Stop()
}

func TestKilledBeforeCommit(t *testing.T) {
	server, db := exampletest.Redis(t), shop(t)
	url, kill := startReplica(t)
	tx, err := db.Begin() // immediate: no other transaction begins
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	answered := make(chan error, 1)
	go func() {
		_, err := send(url, "anna", `"k1"`, "lamp")
		answered <- err
	}()
	await(t, "the request under its lock", func() bool { return server.Exists(holdfast.Key("create-order", "anna", "k1")) })
	kill()
	if err := <-answered; err == nil {
		t.Fatal("the client has an answer")
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	server.FastForward(time.Minute)

	program, urls := start(t, 1)
	if got := insist(t, urls[0], "anna", `"k1"`, "lamp"); got.status != http.StatusCreated || got.replayed {
		t.Errorf("got %+v, want an order that is made now", got)
	}
	wantOrders(t, db, 1)
	program.Stop()
}

// TestForgottenRunsAgain deletes by the statements in the comment of answersDDL.
func TestForgottenRunsAgain(t *testing.T) {
	exampletest.Redis(t)
	db := shop(t)
	program, urls := start(t, 1)
	insist(t, urls[0], "anna", `"old"`, "lamp")
	if _, err := db.Exec("UPDATE answers SET made_at = datetime('now', '-2 days')"); err != nil {
		t.Fatal(err)
	}
	insist(t, urls[0], "anna", `"new"`, "lamp")
	source, err := os.ReadFile("answers.go")
	if err != nil {
		t.Fatal(err)
	}
	statement := regexp.MustCompile(`(?m)^//\t(DELETE .*)$`).FindSubmatch(source)
	if statement == nil {
		t.Fatal("no statement")
	}
	if _, err := db.Exec(string(statement[1])); err != nil {
		t.Fatal(err)
	}
	if got := insist(t, urls[0], "anna", `"new"`, "lamp"); !got.replayed || got.body != "order 2\n" {
		t.Errorf("the new one: got %+v, want it replayed", got)
	}
	if got := insist(t, urls[0], "anna", `"old"`, "lamp"); got.replayed || got.body != "order 3\n" {
		t.Errorf("the old one: got %+v, want another order", got)
	}
	program.Stop()
}
