package servertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// impatient makes a client give up soon and never try twice.
func impatient(o *redis.Options) {
	o.ReadTimeout = 200 * time.Millisecond
	o.MaxRetries = -1
	o.DialerRetries = 1
}

// eventually polls ok for as long as a loaded machine may need.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-limit.C:
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestPausedServerAnswersAfterResume(t *testing.T) {
	ctx := context.Background()
	s := Redis(t)
	rdb := s.Client(impatient)
	if err := rdb.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	if err := rdb.Set(ctx, "k", "v", 0).Err(); !isTimeout(err) {
		t.Fatalf("a paused server: got error %v, want a time-out", err)
	}
	s.Resume()
	// The kernel took the request, so it is served in the end.
	eventually(t, "the request sent during the pause", func() bool {
		return rdb.Get(ctx, "k").Val() == "v"
	})
}

func TestPausedServerIsKilledWithTheTest(t *testing.T) {
	var s *Server
	t.Run("pauses", func(t *testing.T) {
		s = Redis(t)
		s.Pause()
	})
	if s == nil {
		t.Skip("there is no server to pause")
	}
	if !s.proc.Gone() {
		t.Error("a paused server outlived its test")
	}
}

func TestCommandStatsCountCallsWithoutHandshakes(t *testing.T) {
	ctx := context.Background()
	s := Redis(t)
	rdb := s.Client()
	rdb.Set(ctx, "k", "v", 0)
	s.ResetStats(t)
	for range 3 {
		rdb.Get(ctx, "k")
	}
	s.Client().Del(ctx, "k")
	got := s.CommandStats(t)
	if want := (Counts{"get": 3, "del": 1}); !maps.Equal(got, want) || got.Total() != 4 {
		t.Errorf("got %v, total %d, want %v", got, got.Total(), want)
	}
}

// TestServerDiesWithTheTestBinary runs itself as a child that starts a server
// and is then killed, which leaves it no chance to clean up.
func TestServerDiesWithTheTestBinary(t *testing.T) {
	if os.Getenv("SERVERTEST_CHILD") == "1" {
		s := Redis(t)
		fmt.Printf("server %s\n", s.Addr())
		_ = os.Stdout.Sync()
		select {}
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the kernel ties children to their parent on Linux only")
	}
	if _, err := findRedis(); err != nil {
		require(t, "redis-server", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTheTestBinary$", "-test.v")
	cmd.Env = append(os.Environ(), "SERVERTEST_CHILD=1", "TMPDIR="+t.TempDir())
	child, err := startProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer child.Kill()
	var addr string
	eventually(t, "the child's server", func() bool {
		_, rest, ok := strings.Cut(child.Log(), "server ")
		addr, _, _ = strings.Cut(rest, "\n")
		return ok && strings.Contains(rest, "\n")
	})
	if err := dial(addr); err != nil {
		t.Fatalf("the child's server does not answer: %v", err)
	}
	child.Kill()
	eventually(t, "the end of the child's server", func() bool { return dial(addr) != nil })
}

func dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// A test that fails leaves commands under way, of a server that is silent, and has to end all the same.
func TestEndWithCommandsUnderWay(t *testing.T) {
	for name, silent := range map[string]func(t *testing.T) *redis.Client{
		"paused": func(t *testing.T) *redis.Client {
			s := Redis(t)
			rdb := s.Client()
			s.Pause()
			return rdb
		},
		"paused before": func(t *testing.T) *redis.Client {
			s := Redis(t)
			s.Pause()
			return s.Client()
		},
		"cut": func(t *testing.T) *redis.Client {
			p := Proxy(t, Redis(t).Addr())
			rdb := p.Client()
			if err := rdb.Ping(context.Background()).Err(); err != nil {
				t.Error(err)
			}
			p.CutDown()
			return rdb
		},
	} {
		began := time.Now()
		t.Run(name, func(t *testing.T) {
			rdb := silent(t)
			go rdb.Get(context.Background(), "k")
			time.Sleep(200 * time.Millisecond)
		})
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
	}
}

func TestServerIsToldFromAnotherOnItsPort(t *testing.T) {
	late := Server{port: Redis(t).port, proc: &process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}}
	if err := late.ask(); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("another server's answer: got %v, want its port in use", err)
	}
}
