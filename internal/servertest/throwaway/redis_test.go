package throwaway

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	_ "github.com/holdfast-go/holdfast/internal/servertest/testlimit"
)

func TestRedisEndsWithItsContextOrClose(t *testing.T) {
	if _, err := FindRedis(); err != nil {
		t.Skip(err)
	}
	for name, end := range map[string]func(s *Redis, cancel func()){
		"context": func(_ *Redis, cancel func()) { cancel() },
		"close":   func(s *Redis, _ func()) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			s, err := StartRedis(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			conn, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			end(s, cancel)
			select {
			case <-s.proc.Done():
			case <-time.After(Patience):
				t.Fatal("it goes on")
			}
			s.Close() // may come again
			if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its directory: got %v, want it gone", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := StartRedis(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the context has ended: got %v", err)
	}
}

func TestServerIsToldFromAnotherOnItsPort(t *testing.T) {
	if _, err := FindRedis(); err != nil {
		t.Skip(err)
	}
	s, err := StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	late := Redis{port: s.port, proc: &Process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}}
	if err := late.ask(); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("another server's answer: got %v, want its port in use", err)
	}
}
