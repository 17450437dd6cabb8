package servertest

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Clock is a wall clock that a test sets, and that servers go by: TIME, the
// ends of leases, INFO. It runs as that of the machine does between two steps.
type Clock struct {
	t    testing.TB
	file string
	env  []string
	mem  []byte // the file's, shared with the servers: how far the clock is ahead, in ns
}

// NewClock makes a clock that is right. It takes Linux, a C compiler and a
// server that takes its time from the C library; the test is skipped where one
// of them is missing, as they are no servers.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ahead")
	env, mem, err := newClock(t, file)
	if err != nil {
		t.Skipf("servertest: the clock of a server cannot be set here: %v", err)
	}
	return &Clock{t, file, env, mem}
}

// Redis starts a server as [Redis] does, that goes by this clock, also after a
// restart.
func (c *Clock) Redis(args ...string) *Server {
	c.t.Helper()
	s := startRedis(c.t, c.env, args...)
	// A preloaded library is left out where the program was linked statically.
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	info, err := rdb.InfoMap(context.Background(), "server").Result()
	if err != nil {
		c.t.Fatalf("servertest: clock of %s: %v", s.Addr(), err)
	}
	c.Step(probe)
	at, err := rdb.Time(context.Background()).Result()
	c.Step(-probe)
	switch {
	case err != nil:
		c.t.Fatalf("servertest: clock of %s: %v", s.Addr(), err)
	case time.Until(at) < probe/2+c.Ahead():
		c.t.Skipf("servertest: redis %s does not take its time from the C library", info["Server"]["redis_version"])
	}
	return s
}

// probe is no more than an empty server can be set forward by, and back.
const probe = time.Hour

// Step sets the clock forward by d, or back by -d. It is the time of all that a
// server begins to do from then on.
func (c *Clock) Step(d time.Duration) { c.add(int64(d)) }

// File is where other processes find how far the clock is ahead, by
// [ReadClock].
func (c *Clock) File() string { return c.file }

// ReadClock is how far the clock of a file is ahead of the true time.
func ReadClock(file string) (time.Duration, error) {
	mem, err := os.ReadFile(file)
	if err == nil && len(mem) != 8 {
		err = fmt.Errorf("servertest: %s is no clock", file)
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(binary.NativeEndian.Uint64(mem)), nil
}

// Ahead is how far the clock is ahead of the true time.
func (c *Clock) Ahead() time.Duration { return time.Duration(c.add(0)) }
