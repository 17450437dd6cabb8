package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	lease    = 3 * time.Second // of the Lockers; an adapter may have another one
	patience = time.Minute     // for what must happen
	pause    = 10 * time.Millisecond
)

// A stage is what one scenario has: a Redis and the replicas on it.
type stage struct {
	Adapter
	t     testing.TB
	redis *miniredis.Miniredis

	mu    sync.Mutex
	state state
	conns map[net.Conn]struct{}
}

// state is that of the way to Redis.
type state int

const (
	up   state = iota
	down       // connections are closed, dials refused
	hung       // nothing arrives
)

func newStage(t testing.TB, a Adapter) *stage {
	s := &stage{Adapter: a, t: t, redis: miniredis.NewMiniRedis(), conns: map[net.Conn]struct{}{}}
	s.redis.ClockTTL(true)
	t.Cleanup(func() {
		s.redis.Close()
		if !a.RealTime {
			time.Sleep(patience) // go-redis' attempts to dial outlive their client, and time ends with the bubble's test
		}
	})
	return s
}

// client returns one whose connections are pipes, which a bubble can hold.
func (s *stage) client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // not dialled
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.state == down {
				return nil, errors.New("connection refused")
			}
			c, err := s.redis.Dial()
			if err != nil {
				return nil, err
			}
			s.conns[c] = struct{}{}
			return &conn{c, s}, nil
		},
		DialerRetries:            1,
		PoolSize:                 2 * crowd, // who queues for a connection uses a timer of another bubble
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

type conn struct {
	net.Conn
	s *stage
}

// Write loses what is written while Redis is hung.
func (c *conn) Write(p []byte) (int, error) {
	c.s.mu.Lock()
	lost := c.s.state == hung
	c.s.mu.Unlock()
	if lost {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// become changes the way to Redis.
func (s *stage) become(to state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == hung || to == down { // what has been lost is not made up for
		for c := range s.conns {
			_ = c.Close()
		}
		clear(s.conns)
	}
	s.state = to
}

// locker returns one with a client of its own, as that of another process.
func (s *stage) locker() (*holdfast.Locker, error) {
	l, err := holdfast.New(s.client(), holdfast.WithTTL(lease))
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Shutdown(ctx); err != nil {
			s.t.Errorf("a lock was not released: %v", err)
		}
	})
	return l, nil
}

// A replica is one process of the service.
type replica struct {
	*holdfast.Locker
	run func(ctx context.Context, name string) error
}

func (s *stage) replica(work func(ctx context.Context, name string)) (*replica, error) {
	l, err := s.locker()
	if err != nil {
		return nil, err
	}
	return &replica{l, s.Start(s.t, l, work)}, nil
}

// begin runs name on a goroutine of its own, on which a panic becomes an error.
func (r *replica) begin(ctx context.Context, name string) <-chan error {
	out := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				out <- fmt.Errorf("panic: %v", p)
			}
		}()
		out <- r.run(ctx, name)
	}()
	return out
}

// insist runs name until it is not refused for a busy lock.
func (r *replica) insist(ctx context.Context, name string) <-chan error {
	out := make(chan error, 1)
	go func() {
		for end := time.Now().Add(patience); ; time.Sleep(pause) {
			if err := <-r.begin(ctx, name); !errors.Is(err, holdfast.ErrNotAcquired) || time.Now().After(end) {
				out <- err
				return
			}
		}
	}()
	return out
}

// soon returns what c gets.
func soon[T any](c <-chan T, what string) (v T, err error) {
	select {
	case v = <-c:
		return v, nil
	case <-time.After(patience):
		return v, fmt.Errorf("%s: nothing happened for %v", what, patience)
	}
}

// A gate is work that stays inside until it may leave.
type gate struct {
	entered chan context.Context
	leave   chan struct{}
	open    func() // once
}

func newGate() *gate {
	g := &gate{entered: make(chan context.Context, crowd), leave: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.leave) })
	return g
}

func (g *gate) work(ctx context.Context, _ string) {
	g.entered <- ctx
	<-g.leave
}

// A visit is a call whose work is inside, and stays there until the gate is open.
type visit struct {
	*replica
	*gate
	ctx context.Context // of the work
	end <-chan error
}

// visit starts a replica, and has a call of it enter.
func (s *stage) visit(ctx context.Context, name string) (*visit, error) {
	v := &visit{gate: newGate()}
	var err error
	if v.replica, err = s.replica(v.work); err == nil {
		v.end = v.begin(ctx, name)
		v.ctx, err = soon(v.entered, "a call for a free lock")
	}
	if err != nil {
		v.open()
	}
	return v, err
}

// lasting are the companions of a key that stay for a while, and keep nobody waiting.
var lasting = regexp.MustCompile(`:~(fence|mark|gone:.*)$`)

// clean returns an error if anything else is left in Redis of keys with name.
func (s *stage) clean(name string) error {
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		left := slices.DeleteFunc(s.redis.Keys(), func(k string) bool { return !strings.Contains(k, name) || lasting.MatchString(k) })
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("keys are left in Redis: %q", left)
		}
	}
}
