package main

import (
	"io"
	"net"
	"os"
	"regexp"
	"strings"
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

// Without a Redis no replica leads, and nobody waits for one.
func TestNobodyLeadsWithoutRedis(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	t.Setenv("REDIS_ADDR", l.Addr().String())
	if err := run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), "no Redis at "+l.Addr().String()) {
		t.Errorf("got %v", err)
	}
}
