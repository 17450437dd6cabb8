package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

func TestNextLeaderGoesOn(t *testing.T) {
	for name, redis := range map[string]func(){
		"embedded": func() { t.Setenv("REDIS_ADDR", "") },
		"another":  func() { exampletest.Redis(t) },
	} {
		redis()
		got := exampletest.Start(t, run).Wait()
		for id := 1; id <= 6; id++ {
			if n := strings.Count(got, fmt.Sprintf("sends message %d\n", id)); n != 1 {
				t.Errorf("%s: message %d was sent %d times:\n%s", name, id, n, got)
			}
		}
		if n := strings.Count(got, " leads no more\n"); n != 1 || strings.Index(got, " leads no more") > strings.Index(got, "message 3") {
			t.Errorf("%s: %d leaders died:\n%s", name, n, got)
		}
	}
}
