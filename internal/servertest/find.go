package servertest

import (
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/servertest/throwaway"
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
	if _, err := throwaway.FindRedis(); err != nil {
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
