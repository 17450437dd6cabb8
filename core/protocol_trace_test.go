//go:build !holdfast_trace

package holdfast_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What the scripts do is held against their specification, internal/model/trace, in a build in which they write what they do.
func TestScriptsDoWhatTheirSpecificationSays(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "traced.test")
	run := func(t *testing.T, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), "HOLDFAST_SCHEDULES=20", "HOLDFAST_SOAK=", "SEED=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		t.Logf("%s", out)
	}
	t.Run("build", func(t *testing.T) { run(t, "go", "test", "-c", "-tags", "holdfast_trace", "-o", binary, ".") })
	t.Run("run", func(t *testing.T) { run(t, binary, "-test.v", "-test.run", "^TestTraced$") })
}
