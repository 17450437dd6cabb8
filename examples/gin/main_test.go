package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/redis/go-redis/v9"
)

func init() { gin.SetMode(gin.ReleaseMode) } // as main does; programs run side by side here

func TestRequestsForOneOrderRunOneAtATime(t *testing.T) {
	server := exampletest.Redis(t)
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	program := exampletest.Start(t, run)
	url := strings.TrimPrefix(program.Await(1, "listening on ")[0], "listening on ")

	// A worker elsewhere has the order.
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	worker, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := worker.TryAcquire(t.Context(), holdfast.Key("order", "42"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, body := post(t, url+"/orders/42/pay"); resp.StatusCode != http.StatusConflict || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a busy order: got %s %v %q, want 409 with Retry-After", resp.Status, resp.Header, body)
	}
	if resp, body := post(t, url+"/orders/43/pay"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(body, "paid order 43, token ") {
		t.Errorf("another order: got %s %q", resp.Status, body)
	}
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if resp, body := post(t, url+"/orders/42/pay"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(body, "paid order 42, token ") {
		t.Errorf("the order when it is free: got %s %q", resp.Status, body)
	}
	if err := worker.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	program.Stop()
}

func TestEmbeddedRedis(t *testing.T) {
	t.Setenv("REDIS_ADDR", "")
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	program := exampletest.Start(t, run)
	url := strings.TrimPrefix(program.Await(1, "listening on ")[0], "listening on ")
	if resp, body := post(t, url+"/orders/42/pay"); resp.StatusCode != http.StatusOK {
		t.Errorf("got %s %q", resp.Status, body)
	}
	program.Stop()
}

func post(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}
