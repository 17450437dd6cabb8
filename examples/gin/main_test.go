package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/examples/internal/backend"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/redis/go-redis/v9"
)

func TestRequestsForOneOrderRunOneAtATime(t *testing.T) {
	server, err := backend.Miniredis()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	t.Setenv("REDIS_ADDR", server.Addr())
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

	ann := func(r *http.Request) { r.SetBasicAuth("ann", "secret") }
	bob := func(r *http.Request) { r.SetBasicAuth("bob", "secret") }
	key := func(r *http.Request) { r.Header.Set("Idempotency-Key", `"8e03978e"`) }
	resp, first := post(t, url+"/orders", ann, key)
	if resp.StatusCode != http.StatusCreated {
		t.Errorf("got %s %q, want 201", resp.Status, first)
	}
	if _, again := post(t, url+"/orders", ann, key); again != first {
		t.Errorf("the same request again: got %q, want %q", again, first)
	}
	if _, other := post(t, url+"/orders", bob, key); other == first {
		t.Errorf("another user with the same key has got the order of the first, %q", other)
	}
	if resp, _ := post(t, url+"/orders", ann); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without a key: got %s, want 400", resp.Status)
	}
	if resp, _ := post(t, url+"/orders", key); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("nobody: got %s, want 401", resp.Status)
	}

	if err := worker.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	program.Stop()
}

func post(t *testing.T, url string, with ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range with {
		w(req)
	}
	resp, err := http.DefaultClient.Do(req)
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
