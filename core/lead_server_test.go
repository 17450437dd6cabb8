package holdfast_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A leader is killed, and can tell nobody. Another leads when the lease is over, not before, and a second later at most.
func TestServerLeadAfterAKill(t *testing.T) {
	t.Parallel()
	const (
		lease = 2100 * time.Millisecond // waiters look every two seconds or so all the same, the second time long after it
		late  = time.Second             // what Lead promises
		early = 50 * time.Millisecond   // by how much the server's clock may be behind within an answer
		tries = 5                       // on a busy machine one may take longer, which says nothing, if not longer than hang
	)
	server := servertest.Redis(t)
	rdb := server.Client()
	for range tries {
		first := startLeader(t, server, lease, "")
		owner := rdb.Get(background, "relay").Val()
		next := stand(t, server, lease)
		first.Kill()
		asked := time.Now()
		pipe := rdb.Pipeline()
		its, left := pipe.Get(background, "relay"), pipe.PTTL(background, "relay")
		_, _ = pipe.Exec(background) // an error if the key has gone
		answered := time.Now()
		term := next.leads(t)
		next.end(t)
		if term.token <= first.token.Load() {
			t.Errorf("term %d after %d", term.token, first.token.Load())
		}
		if owner == "" || its.Val() != owner {
			continue // it was too busy to renew
		}
		if d := asked.Add(left.Val()).Sub(term.at); d > early {
			t.Errorf("another leads %v before the end of the lease", d)
		}
		over := term.at.Sub(answered.Add(left.Val()))
		t.Logf("another leads %v after the end of a lease that had %v left", over.Round(time.Millisecond), left.Val())
		if over <= late {
			return
		}
	}
	t.Errorf("%d times it took longer than %v", tries, late)
}

// A leader whose context ends, whose Locker shuts down, or whose function fails, releases: the next does not wait for the lease.
func TestServerLeadAfterAnEnd(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"context", "Shutdown", "error"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			const lease, atOnce = hang, hang / 3 // on a busy machine
			server := servertest.Redis(t)
			first := startLeader(t, server, lease, how)
			next := stand(t, server, lease)
			began := time.Now()
			go func() { first.ended <- first.Leave(hang) }()
			term := next.leads(t)
			if d := term.at.Sub(began); d > atOnce {
				t.Errorf("the next leads %v after the end, with a lease of %v", d, lease)
			}
			if term.token <= first.token.Load() {
				t.Errorf("term %d after %d", term.token, first.token.Load())
			}
			fine(t, <-first.ended)
			next.end(t)
		})
	}
}

// candidate stands for election in this process.
type candidate struct {
	*holdfast.Locker
	cancel context.CancelFunc
	terms  chan term
	done   chan error
}

type term struct {
	token int64
	at    time.Time
}

// stand has another replica stand for election, and returns when it waits in line.
func stand(t *testing.T, server *servertest.Server, lease time.Duration) *candidate {
	t.Helper()
	c := &candidate{Locker: newLocker(t, server.Client(), holdfast.WithTTL(lease)), terms: make(chan term, 8), done: make(chan error, 1)}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(background)
	t.Cleanup(c.cancel)
	go func() {
		c.done <- c.Lead(ctx, "relay", func(ctx context.Context) error {
			c.terms <- term{holdfast.Held(ctx)[0].Token(), time.Now()}
			<-ctx.Done()
			return nil
		})
	}()
	until(t, "a replica waits", func() bool {
		state, err := c.Inspect(background, "relay")
		return err == nil && state.Waiting == 1
	})
	if len(c.terms) > 0 {
		t.Fatal("two lead")
	}
	return c
}

func (c *candidate) leads(t *testing.T) (got term) {
	t.Helper()
	within(t, "the next leads", func() { got = <-c.terms })
	return got
}

// end has it lead no more.
func (c *candidate) end(t *testing.T) {
	t.Helper()
	c.cancel()
	within(t, "Lead returns", func() { wantIs(t, <-c.done, context.Canceled) })
	shutdown(t, c.Locker)
}

const leaderEnv = "HOLDFAST_LEADER" // set in a process that is to lead: where the server is, its lease, and how it ends

// leader is another process that leads.
type leader struct {
	*servertest.Child
	token atomic.Int64
	ended chan error
}

// startLeader starts one, and returns when it leads.
func startLeader(t *testing.T, server *servertest.Server, lease time.Duration, how string) *leader {
	t.Helper()
	c := &leader{ended: make(chan error, 1)}
	var err error
	c.Child, err = servertest.StartChild(fmt.Sprintf("%s=%s %s %s", leaderEnv, server.Addr(), lease, how), func(r io.Reader) error {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			var token int64
			if _, err := fmt.Sscan(lines.Text(), &token); err != nil {
				return err
			}
			c.token.Store(token)
		}
		return nil
	})
	must(t, err)
	t.Cleanup(c.Kill)
	until(t, "a process leads", func() bool { return c.token.Load() > 0 })
	return c
}

// beLeader is what a leader's process does until its input ends.
func beLeader(orders string) error {
	var addr, lease, how string
	_, _ = fmt.Sscan(orders, &addr, &lease, &how)
	ttl, err := time.ParseDuration(lease)
	if err != nil {
		return err
	}
	l, err := holdfast.New(redis.NewClient(&redis.Options{Addr: addr}), holdfast.WithTTL(ttl))
	if err != nil {
		return err
	}
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	closed := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		switch how {
		case "context":
			cancel()
		case "Shutdown":
			closed <- l.Shutdown(context.Background())
		case "error":
			close(over)
			time.AfterFunc(100*time.Millisecond, cancel) // before it stands again
		}
	}()
	err = l.Lead(ctx, "relay", func(ctx context.Context) error {
		fmt.Println(holdfast.Held(ctx)[0].Token())
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return errWork
		}
	})
	switch {
	case how == "Shutdown" && errors.Is(err, holdfast.ErrClosed):
		return <-closed
	case how != "Shutdown" && errors.Is(err, context.Canceled):
		return nil
	}
	return fmt.Errorf("Lead: %w", err)
}
