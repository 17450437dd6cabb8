package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

func TestMetricsTellOfLocks(t *testing.T) {
	t.Setenv("REDIS_ADDR", "") // the embedded one
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	program := exampletest.Start(t, run)
	url := strings.TrimPrefix(program.Await(1, "listening on ")[0], "listening on ")
	for _, line := range []string{
		`holdfast_acquire_seconds_count{resource="order"} 4`,
		`holdfast_acquire_seconds_count{resource="report"} 1`,
		`holdfast_lost_total{resource="order"} 0`,
		`holdfast_lost_total{resource="report"} 1`,
		`holdfast_held{resource="report"} 0`,
		`holdfast_waiting{resource="order"} 0`,
	} {
		// Hooks may be called a moment later than calls return.
		for deadline := time.Now().Add(20 * time.Second); !strings.Contains(get(t, url), line+"\n"); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %s in the metrics\n%s", line, get(t, url))
			}
		}
	}

	program.Await(1, `level=WARN msg="holdfast: lost" key=report:daily`)
	program.Stop()
	if t.Failed() {
		t.Log(program.Output())
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
