package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// lapses waits until a lock is lost, and requires that its own release says so.
func lapses(t *testing.T, what string, lock *holdfast.Lock) {
	t.Helper()
	until(t, what+" notices", func() bool { return errors.Is(lock.Err(), holdfast.ErrLost) })
	if err := lock.Release(t.Context()); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("%s: Release returned %v, want ErrLost", what, err)
	}
}

func TestReleaseTakesTheLockAndLetsTheNextIn(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		old := acquire(t, newLocker(t, rdb, holdfast.WithTTL(4*time.Second)), "k", holdfast.WithLabel("old"))
		if r := play(t, addr, "release", "-yes", "k"); r.status != 0 || !strings.Contains(r.stdout, "old") {
			t.Fatalf("got %v", r)
		}
		if st, err := newLocker(t, rdb).Inspect(t.Context(), "k"); err != nil || st.Held {
			t.Errorf("got %+v and %v, want a free lock", st, err)
		}
		lapses(t, "the old holder", old)
		next := acquire(t, newLocker(t, rdb), "k", holdfast.WithLabel("next"))
		if next.Token() <= old.Token() {
			t.Errorf("token %d after %d", next.Token(), old.Token())
		}

		waiter, got := newLocker(t, rdb), make(chan int64, 1)
		go func() {
			lock, err := waiter.Acquire(t.Context(), "k")
			if err != nil {
				t.Error(err)
				got <- 0
				return
			}
			got <- lock.Token()
		}()
		until(t, "it waits", func() bool { st, err := waiter.Inspect(t.Context(), "k"); return err == nil && st.Waiting == 1 })
		began := time.Now()
		if r := play(t, addr, "release", "-yes", "k"); r.status != 0 || !strings.Contains(r.stdout, "next") {
			t.Fatalf("got %v", r)
		}
		if token := <-got; token <= next.Token() || time.Since(began) > 20*time.Second {
			t.Errorf("the waiter got token %d after %d, and %v", token, next.Token(), time.Since(began))
		}
		if r := play(t, addr, "show", "-json", "k"); !strings.Contains(r.stdout, fmt.Sprint(old.Token())) {
			t.Errorf("the first holder is not among the lost: %v", r)
		}
	})
}

// asked answers a question, and does something before that.
type asked struct {
	do     func()
	answer io.Reader
}

func (a *asked) Read(p []byte) (int, error) {
	if a.do != nil {
		a.do()
		a.do = nil
	}
	return a.answer.Read(p)
}

func TestReleaseChangesNothingElse(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		l := newLocker(t, rdb)
		lock := acquire(t, l, "k", holdfast.WithLabel("first"))
		release := func(do func(), answer string, args ...string) result {
			var stdout, stderr output
			a := &app{stdin: &asked{do, strings.NewReader(answer)}, stdout: &stdout, stderr: &stderr, getenv: func(string) string { return addr }, connect: connect}
			status := a.run(t.Context(), append([]string{"release"}, args...))
			return result{status, stdout.String(), stderr.String()}
		}
		for _, answer := range []string{"", "n\n", "\n", "yesterday\n"} {
			if r := release(nil, answer, "k"); r.status != statusDeclined || !strings.Contains(r.stdout, "first") || lock.Err() != nil {
				t.Errorf("%q: %v", answer, r)
			}
		}
		if r := release(nil, "y\n", "-token", "1", "k"); r.status != statusHeld {
			t.Errorf("another token: %v", r)
		}
		var second *holdfast.Lock
		r := release(func() {
			if err := lock.Release(t.Context()); err != nil {
				t.Error(err)
			}
			second = acquire(t, l, "k")
		}, "y\n", "k")
		if st, err := l.Inspect(t.Context(), "k"); r.status != statusHeld || err != nil || st.Token != second.Token() {
			t.Errorf("another holder meanwhile: %v; %+v, %v", r, st, err)
		}
		if r := release(nil, "YES\n", "k"); r.status != 0 {
			t.Errorf("got %v", r)
		}
		if r := release(nil, "y\n", "k"); r.status != statusNothing {
			t.Errorf("a free lock: %v", r)
		}
		rdb.Set(t.Context(), "foreign", strings.Repeat("x", 200), time.Hour)
		if r := release(nil, "y\n", "foreign"); r.status != 0 || rdb.Exists(t.Context(), "foreign").Val() != 0 {
			t.Errorf("a foreign lock: %v", r)
		}
	})
}

func TestReleaseOfOneOfSeveral(t *testing.T) {
	onServers(t, func(t *testing.T, addr string, rdb *redis.Client) {
		l := newLocker(t, rdb, holdfast.WithTTL(4*time.Second))
		var locks []*holdfast.Lock
		for _, label := range []string{"one", "two"} {
			locks = append(locks, acquire(t, newLocker(t, rdb, holdfast.WithTTL(4*time.Second)), "k", holdfast.WithLimit(2), holdfast.WithLabel(label)))
		}
		if r := play(t, addr, "release", "-yes", "k"); r.status != statusUsage || !strings.Contains(r.stderr, "-token") {
			t.Errorf("of two: %v", r)
		}
		got := make(chan *holdfast.Lock, 1)
		go func() {
			lock, err := l.Acquire(t.Context(), "k", holdfast.WithLimit(2), holdfast.WithLabel("three"))
			if err != nil {
				t.Error(err)
			}
			got <- lock
		}()
		until(t, "it waits", func() bool { st, err := l.Inspect(t.Context(), "k"); return err == nil && st.Waiting == 1 })
		if r := play(t, addr, "release", "-yes", "-token", fmt.Sprint(locks[0].Token()), "k"); r.status != 0 {
			t.Fatalf("got %v", r)
		}
		three := <-got
		lapses(t, "one", locks[0])
		if err := locks[1].Err(); err != nil {
			t.Errorf("two: %v", err)
		}
		for _, lock := range []*holdfast.Lock{locks[1], three} {
			if err := lock.Release(t.Context()); err != nil {
				t.Errorf("a holder that was let alone: %v", err)
			}
		}

		reader := acquire(t, l, "r", holdfast.WithShared())
		if r := play(t, addr, "release", "-yes", "r"); r.status != 0 {
			t.Fatalf("got %v", r)
		}
		acquire(t, newLocker(t, rdb), "r") // a writer
		lapses(t, "the reader", reader)

		same := acquire(t, l, "id", holdfast.WithReentryID("job"))
		if r := play(t, addr, "release", "-yes", "id"); r.status != 0 {
			t.Fatalf("got %v", r)
		}
		if next := acquire(t, newLocker(t, rdb), "id"); next.Token() <= same.Token() {
			t.Errorf("token %d after %d", next.Token(), same.Token())
		}
		lapses(t, "the job", same)
	})
}
