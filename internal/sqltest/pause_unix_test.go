//go:build unix

package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	holdfast "github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

const replicaEnv = "HOLDFAST_SQLTEST_REPLICA" // set in the process that will be paused: driver, dialect, DSN, Redis

func TestMain(m *testing.M) {
	if spec := os.Getenv(replicaEnv); spec != "" {
		if err := replica(strings.Split(spec, "\n")); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

var pausedKey = holdfast.Key("order", "42")

// replica takes the lock, says so, and writes when it is told to, which is after it was paused.
func replica(spec []string) error {
	db, err := sql.Open(spec[0], spec[2])
	if err != nil {
		return err
	}
	var dialect sqlfence.Dialect
	for _, d := range []sqlfence.Dialect{sqlfence.Postgres, sqlfence.MySQL, sqlfence.SQLite} {
		if d.String() == spec[1] {
			dialect = d
		}
	}
	fence, err := sqlfence.New(dialect)
	if err != nil {
		return err
	}
	locker, err := holdfast.New(redis.NewClient(&redis.Options{Addr: spec[3]}), holdfast.WithTTL(time.Second))
	if err != nil {
		return err
	}
	err = locker.Do(context.Background(), pausedKey, func(ctx context.Context) error {
		lock := holdfast.Held(ctx)[0]
		write := func(ctx context.Context) error {
			return fence.WithTx(ctx, db, nil, func(tx *sql.Tx) error {
				_, err := tx.Exec("UPDATE paused SET writer = 'the paused one'")
				return err
			})
		}
		if err := write(ctx); err != nil {
			return err
		}
		fmt.Println("token", lock.Token())
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		// One that does not ask whether it still has the lock, or asked just before it was paused.
		err := write(sqlfence.WithToken(context.Background(), lock.Key(), lock.Token()))
		fmt.Println("stale", errors.Is(err, sqlfence.ErrStale))
		// One that does.
		err = write(ctx)
		fmt.Println("lost", errors.Is(err, holdfast.ErrLost))
		return err
	})
	fmt.Println("request", errors.Is(err, holdfast.ErrLost))
	return nil
}

// testPausedReplica stops a process past its lease while it holds the lock, has this one take over and write,
// and lets the other go on.
func testPausedReplica(t *testing.T, c *cell, driver string) {
	c.exec(t, "CREATE TABLE paused (writer varchar(40))")
	c.exec(t, "INSERT INTO paused (writer) VALUES ('nobody')")
	server := servertest.Redis(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), replicaEnv+"="+strings.Join([]string{driver, c.dialect.String(), c.dsn, server.Addr()}, "\n"))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	says := func(want string) string {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("the replica says %q, want %q", lines.Text(), want)
		}
		return strings.TrimPrefix(lines.Text(), want)
	}
	token := says("token ")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	locker, err := holdfast.New(server.Client(), holdfast.WithTTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	err = locker.Do(within(t), pausedKey, func(ctx context.Context) error { // its turn comes when the lease is over
		return c.fence.WithTx(ctx, c.db, nil, func(tx *sql.Tx) error {
			_, err := tx.Exec("UPDATE paused SET writer = 'the successor of " + token + "'")
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := locker.Shutdown(within(t)); err != nil {
		t.Error(err)
	}

	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write([]byte("write\n")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"stale true", "lost true", "request true"} {
		says(want)
	}
	var writer string
	if err := c.db.QueryRow("SELECT writer FROM paused").Scan(&writer); err != nil || writer != "the successor of "+token {
		t.Errorf("the last writer is %q, %v", writer, err)
	}
}
