package main

import (
	"os"
	"regexp"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

// TestMain is a replica too, which run starts.
func TestMain(m *testing.M) {
	if os.Getenv("REPLICA") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

var want = regexp.MustCompile(`^(replica \d) sends row 1
(replica \d) is killed
(replica \d) sends row 2
(replica \d) sends row 3
(replica \d) sends row 4
(replica \d) was refused after (replica \d) wrote
$`)

func TestNextReplicaTakesOver(t *testing.T) {
	for _, name := range []string{"embedded", "Redis"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("REDIS_ADDR", "")
			if name == "Redis" {
				exampletest.Redis(t)
			}
			got := exampletest.Start(t, run).Wait()
			who := want.FindStringSubmatch(got)
			if who == nil {
				t.Fatalf("got\n%s", got)
			}
			if who[1] != who[2] || who[3] == who[1] || who[4] != who[3] || who[5] == who[1] || who[5] == who[3] || who[6] != who[3] || who[7] != who[5] {
				t.Errorf("got\n%s", got)
			}
		})
	}
}
