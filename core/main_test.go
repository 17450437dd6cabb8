package core_test

import (
	"flag"
	"os"
	"testing"
)

// Tests on real servers mostly wait, so that more of them run at once than there are processors. Those in virtual time
// that run beside them count too while they wait for their turn.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // -parallel still goes before it
	os.Exit(m.Run())
}
