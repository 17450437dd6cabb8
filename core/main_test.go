package holdfast_test

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
)

// Tests on real servers mostly wait, so that more of them run at once than there are processors. Those in virtual time
// that run beside them count too while they wait for their turn.
func TestMain(m *testing.M) {
	for env, be := range map[string]func(string) error{holderEnv: beHolder, leaderEnv: beLeader, pausedEnv: bePaused} {
		if orders := os.Getenv(env); orders != "" {
			if err := be(orders); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	// The command line still goes before these.
	if strconv.IntSize == 32 {
		fmt.Println("32 bits: without -run only the tests with real servers; miniredis keeps a script's numbers in an int, and tokens are larger")
		_ = flag.Set("test.run", "^TestServer")
	}
	_ = flag.Set("test.parallel", "16")
	debug.SetGCPercent(400) // most of it is garbage of miniredis' Lua
	os.Exit(m.Run())
}
