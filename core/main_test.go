package core_test

import (
	"flag"
	"os"
	"testing"
)

// Tests on real servers mostly wait, so that more of them run at once than there are processors.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // -parallel still goes before it
	os.Exit(m.Run())
}
