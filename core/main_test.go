package holdfast_test

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"testing"
)

// Tests on real servers mostly wait, so that more of them run at once than there are processors. Those in virtual time
// that run beside them count too while they wait for their turn.
func TestMain(m *testing.M) {
	for env, be := range map[string]func(string) error{holderEnv: beHolder, leaderEnv: beLeader} {
		if orders := os.Getenv(env); orders != "" {
			if err := be(orders); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	_ = flag.Set("test.parallel", "16") // -parallel still goes before it
	debug.SetGCPercent(400)             // most of it is garbage of miniredis' Lua
	os.Exit(m.Run())
}
