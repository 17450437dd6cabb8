//go:build unix

package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/holdfast-go/holdfast/sqlfence"
	"github.com/redis/go-redis/v9"
)

const childEnv = "HOLDFAST_SQLTEST_CHILD" // set in a process of a test: what it is, driver, dialect, DSN, Redis

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(strings.Split(spec, "\n")); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(spec []string) (err error) {
	c := &cell{}
	for _, c.dialect = range []sqlfence.Dialect{sqlfence.Postgres, sqlfence.MySQL, sqlfence.SQLite} {
		if c.dialect.String() == spec[2] {
			break
		}
	}
	if c.fence, err = sqlfence.New(c.dialect); err != nil {
		return err
	}
	db, err := sql.Open(spec[1], spec[3])
	if err != nil {
		return err
	}
	if spec[0] == "victim" {
		return victim(db, c)
	}
	return replica(db, c.fence, spec[4])
}

// process is another process of this program.
type process struct {
	cmd   *exec.Cmd
	stdin io.Writer
	lines *bufio.Scanner
}

func (c *cell) process(t *testing.T, what, driver, redis string) *process {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{what, driver, c.dialect.String(), c.dsn, redis}, "\n"))
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
	return &process{cmd, stdin, bufio.NewScanner(stdout)}
}

// says waits for its next line, and returns what follows want there.
func (p *process) says(t *testing.T, want string) string {
	t.Helper()
	if !p.lines.Scan() || !strings.HasPrefix(p.lines.Text(), want) {
		t.Fatalf("the process says %q, want %q", p.lines.Text(), want)
	}
	return strings.TrimPrefix(p.lines.Text(), want)
}

var pausedKey = holdfast.Key("order", "42")

// replica takes the lock, says so, and writes when it is told to, which is after it was paused.
func replica(db *sql.DB, fence *sqlfence.Fence, addr string) error {
	locker, err := holdfast.New(redis.NewClient(&redis.Options{Addr: addr}), holdfast.WithTTL(time.Second))
	if err != nil {
		return err
	}
	err = locker.Do(context.Background(), pausedKey, func(ctx context.Context) error {
		lock := holdfast.Held(ctx)[0]
		write := func(ctx context.Context) error {
			return fence.WithTx(ctx, db, nil, func(_ context.Context, tx *sql.Tx) error {
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
		err := write(sqlfence.Mark{Resource: lock.Key(), Token: lock.Token()}.In(context.Background()))
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
	p := c.process(t, "replica", driver, server.Addr())
	token := p.says(t, "token ")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	locker, err := holdfast.New(server.Client(), holdfast.WithTTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	err = locker.Do(within(t), pausedKey, func(ctx context.Context) error { // its turn comes when the lease is over
		return c.fence.WithTx(ctx, c.db, nil, func(_ context.Context, tx *sql.Tx) error {
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

	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := p.stdin.Write([]byte("write\n")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"stale true", "lost true", "request true"} {
		p.says(t, want)
	}
	var writer string
	if err := c.db.QueryRow("SELECT writer FROM paused").Scan(&writer); err != nil || writer != "the successor of "+token {
		t.Errorf("the last writer is %q, %v", writer, err)
	}
}
