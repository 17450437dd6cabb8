//go:build unix

package holdfast_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// TestPausedHolder is not a test but the other process of the next one.
func TestPausedHolder(t *testing.T) {
	addr := os.Getenv(pausedEnv)
	if addr == "" {
		t.Skip("runs as a child of TestPausedProcessKnowsAtOnce")
	}
	l := newLocker(t, redis.NewClient(&redis.Options{Addr: addr}), holdfast.WithTTL(time.Second))
	lock := obtain(t, l, "k")
	fmt.Println("held", lock.Token())
	for last := time.Now(); ; {
		now := time.Now()
		// After the stop this is the first that the process does.
		err, ctxErr, late := lock.Err(), lock.Context(background).Err(), time.Now().After(lock.Deadline())
		if now.Sub(last) > 900*time.Millisecond || err != nil {
			fmt.Printf("woke lost=%v context=%v deadline=%v done=%v\n", err != nil, ctxErr != nil, late, isDone(lock.Context(background)))
			fmt.Println("released", lock.Release(background))
			return
		}
		last = now
	}
}

// A process that was stopped past its lease (SIGSTOP, a long garbage collection, a live migration) finds out
// with the first look it takes.
func TestPausedProcessKnowsAtOnce(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	child := exec.Command(os.Args[0], "-test.run=^TestPausedHolder$", "-test.v")
	child.Env = append(os.Environ(), pausedEnv+"="+server.Addr())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Signal(syscall.SIGCONT)
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	next := func(prefix string) string {
		t.Helper()
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatalf("the child ended without %q", prefix)
				}
				if i := strings.Index(line, prefix); i >= 0 {
					return line[i:]
				}
			case <-time.After(hang):
				t.Fatalf("the child did not say %q", prefix)
			}
		}
	}
	var token int64
	if _, err := fmt.Sscanf(next("held"), "held %d", &token); err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	rival := newLocker(t, server.Client())
	lock, err := rival.Acquire(background, "k")
	if err != nil {
		t.Fatal(err)
	}
	if lock.Token() <= token {
		t.Errorf("token %d after %d", lock.Token(), token)
	}
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got, want := next("woke"), "woke lost=true context=true deadline=true done=true"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := next("released"); !strings.Contains(got, "lost") {
		t.Errorf("Release in the child: %q, want a loss", got)
	}
	if err := lock.Err(); err != nil {
		t.Errorf("the woken process took the lock from its successor: %v", err)
	}
	release(t, lock)
}

const pausedEnv = "HOLDFAST_TEST_PAUSED_HOLDER"
