package history

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
)

const workerEnv = "HOLDFAST_HISTORY_WORKER" // set in a process that is a worker: its orders

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		var o Orders
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			err = Work(o, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "worker %d: %v\n", o.ID, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "4") // worlds wait a good part of the time
	}
	os.Exit(m.Run())
}
