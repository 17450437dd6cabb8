package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// require ends a test whose server program is not installed: as a skip, or as
// a failure where the run was told that every server is there.
func require(t testing.TB, server string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
		t.Fatalf("servertest: %s is required here (HOLDFAST_REQUIRE_SERVERS=1): %v", server, err)
	}
	t.Skipf("servertest: %s is not installed: %v", server, err)
}

// Missing names the servers that are not installed here.
func Missing() []string {
	var missing []string
	if _, err := findRedis(); err != nil {
		missing = append(missing, redisName)
	}
	if _, _, err := postgresBinaries(); err != nil {
		missing = append(missing, postgresName)
	}
	if _, _, err := mariaBinaries(); err != nil {
		missing = append(missing, mariaName)
	}
	return missing
}

// find returns the first program found: by name in PATH, or in a directory
// that matches one of the patterns, the last in the alphabet first, which
// prefers the highest version.
func find(names []string, patterns ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
		for _, pattern := range patterns {
			dirs, _ := filepath.Glob(pattern)
			for i := len(dirs) - 1; i >= 0; i-- {
				if path, err := exec.LookPath(filepath.Join(dirs[i], name)); err == nil {
					return path, nil
				}
			}
		}
	}
	return "", fmt.Errorf("no %v in PATH", names)
}

// findRedis returns the program named by HOLDFAST_REDIS_SERVER, or redis-server
// or valkey-server in PATH.
func findRedis() (string, error) {
	path, err := os.Getenv("HOLDFAST_REDIS_SERVER"), error(nil)
	if path != "" {
		path, err = exec.LookPath(path)
	} else {
		path, err = find([]string{"redis-server", "valkey-server"})
	}
	if err != nil {
		err = fmt.Errorf("%w: install Redis or Valkey, or name a server in HOLDFAST_REDIS_SERVER", err)
	}
	return path, err
}
