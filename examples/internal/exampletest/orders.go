package exampletest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/core"
	"github.com/redis/go-redis/v9"
)

// Orders checks a service on two replicas, which router makes. While the work of a request for order 42 goes on, the other
// replica refuses a second request for that order and answers one for another order. A request that loses its lock gets a 503.
// The paths follow that of an order, /orders/42.
func Orders(t *testing.T, router func(locker *holdfast.Locker, work func(ctx context.Context, order string) error) http.Handler, first, second string) {
	t.Helper()
	addr := Redis(t).Addr()
	began, leave := make(chan string, 1), make(chan struct{})
	slow := func(ctx context.Context, order string) error { // of the first replica
		began <- holdfast.Held(ctx)[0].Key()
		select {
		case <-leave:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	quick := func(ctx context.Context, order string) error { return nil }
	replica := func(work func(context.Context, string) error) (*holdfast.Locker, string) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		locker, err := holdfast.New(rdb)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(router(locker, work))
		t.Cleanup(func() {
			server.Close()
			_ = locker.Shutdown(context.Background())
			_ = rdb.Close()
		})
		return locker, server.URL
	}
	locker, one := replica(slow)
	_, two := replica(quick)
	type answer struct {
		status int
		text   string
	}
	answers := make(chan answer, 1)
	begin := func() {
		t.Helper()
		go func() {
			resp, text, err := Post(one + "/orders/42" + first)
			if err != nil {
				text = err.Error()
			}
			answers <- answer{resp.StatusCode, text}
		}()
		select {
		case key := <-began:
			if key != "order:42" {
				t.Errorf("order 42 has the lock %s", key)
			}
		case a := <-answers:
			t.Fatalf("order 42: got %+v before its work", a)
		case <-time.After(patience):
			t.Fatal("the work on order 42 does not begin")
		}
	}
	want := func(what, path string, status int, text string) {
		t.Helper()
		resp, got, err := Post(two + path)
		if err != nil || resp.StatusCode != status || !regexp.MustCompile(text).MatchString(got) || (resp.Header.Get("Retry-After") != "") != (status == http.StatusConflict) {
			t.Errorf("%s: got %d, %v, %q, %v; want %d with %q", what, resp.StatusCode, resp.Header, got, err, status, text)
		}
	}
	begin()
	want("another request for the order", "/orders/42"+second, http.StatusConflict, `^{.*in progress.*}$`)
	want("another order", "/orders/43"+first, http.StatusOK, `^\w+ order 43, token \d+\n$`)
	leave <- struct{}{}
	if a := <-answers; a.status != http.StatusOK || !strings.Contains(a.text, " order 42, token ") {
		t.Errorf("the first request for the order: got %+v", a)
	}
	want("the order once it is free", "/orders/42"+second, http.StatusOK, `^\w+ order 42, token \d+\n$`)

	begin()
	late, cancel := context.WithCancel(context.Background())
	cancel()
	if err := locker.Shutdown(late); !errors.Is(err, context.Canceled) {
		t.Errorf("a shutdown that does not wait: %v", err)
	}
	if a := <-answers; a.status != http.StatusServiceUnavailable || !regexp.MustCompile(`^{[^{}]*outcome is unknown[^{}]*}$`).MatchString(a.text) {
		t.Errorf("the lock is lost: got %+v", a)
	}
}

// Embedded checks that a service which is told of no Redis answers a request.
func Embedded(t *testing.T, run func(context.Context, io.Writer) error, path, want string) {
	t.Helper()
	t.Setenv("REDIS_ADDR", "")
	t.Setenv("LISTEN_ADDR", "127.0.0.1:0")
	program := Start(t, run)
	url := strings.TrimPrefix(program.Await(1, "listening on ")[0], "listening on ")
	if resp, text, err := Post(url + path); err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(text, want) {
		t.Errorf("got %d %q, %v", resp.StatusCode, text, err)
	}
	program.Stop()
}

// Post sends a request without a body. The response's is read.
func Post(url string) (*http.Response, string, error) {
	resp, err := http.Post(url, "", nil)
	if err != nil {
		return &http.Response{}, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}
