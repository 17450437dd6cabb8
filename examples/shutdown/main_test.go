package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
)

func init() { gin.SetMode(gin.ReleaseMode) } // as main does; programs run side by side here

func TestWorkUnderLocksIsNotCutOff(t *testing.T) {
	server := exampletest.Redis(t)
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	work := make(chan time.Time)
	defer func(f func() <-chan time.Time) { finished = f }(finished)
	finished = func() <-chan time.Time { return work }
	program := exampletest.Start(t, run)
	url := strings.TrimPrefix(program.Await(1, "listening on ")[0], "listening on ")

	type answer struct {
		status int
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		resp, err := http.Post(url+"/orders/42/pay", "", nil)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		_ = resp.Body.Close()
		answers <- answer{status: resp.StatusCode}
	}()
	for _, what := range []string{"request", "task", "job"} {
		program.Await(1, what+" begins")
	}
	program.Interrupt()
	program.Await(1, "shutting down")
	close(work) // all of it goes on until now
	program.Stop()

	if a := <-answers; a.err != nil || a.status != http.StatusOK {
		t.Errorf("the request: got %d, %v, want 200", a.status, a.err)
	}
	out := program.Output()
	if strings.Contains(out, "cut off") {
		t.Error("work was cut off")
	}
	for _, what := range []string{"request", "task", "job"} {
		begun, ended := strings.Count(out, what+" begins\n"), strings.Count(out, what+" ends\n")
		if begun != ended {
			t.Errorf("%d of %s began and %d ended", begun, what, ended)
		}
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := -1
	for _, line := range []string{
		"request begins", "shutting down", "request ends", "stopped: http", "stopped: cron", "stopped: asynq", "stopped: locker",
	} {
		i := slices.Index(lines, line)
		if i < last || i < 0 {
			t.Errorf("%q is not where it should be", line)
		}
		last = i
	}
	for _, key := range []string{"order:42", "order:7", "clean-up"} {
		if server.Exists(key) {
			t.Errorf("the lock %s is still there", key)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

func TestEmbeddedRedis(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	program := exampletest.Start(t, run)
	program.Await(1, "listening on ")
	program.Await(1, "task ends")
	program.Stop()
	program.Await(1, "stopped: locker")
}
