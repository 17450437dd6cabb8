package ginlock_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/holdfast-go/holdfast/internal/servertest"
	"github.com/redis/go-redis/v9"
)

// A client has all of a large response before the handler's deferred release has run, and its next request may
// overtake that release. The default wait is there for it. On one HTTP/1.1 connection the next request waits
// for the handler, but not over HTTP/2, or through a proxy: here, each request has a connection of its own.

const sequential = 200

// largeResponses has a route that waits for another holder, as by default, and one that does not.
func largeResponses(locker *holdfast.Locker) http.Handler {
	body := bytes.Repeat([]byte("x"), 100<<10)
	respond := func(c *gin.Context) {
		c.DataFromReader(http.StatusOK, int64(len(body)), "text/plain", bytes.NewReader(body), nil)
	}
	router := gin.New()
	router.GET("/default/:id", ginlock.New(locker, "order", byID), respond)
	router.GET("/at-once/:id", ginlock.New(locker, "order", byID, ginlock.WithBusy(ginlock.Wait(0))), respond)
	return router
}

// conflicts sends the requests one after the other and counts those that are refused.
func conflicts(t *testing.T, client *http.Client, url string) (n int) {
	t.Helper()
	for range sequential {
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		switch {
		case err != nil:
			t.Fatal(err)
		case resp.StatusCode == http.StatusConflict:
			n++
		case resp.StatusCode != http.StatusOK:
			t.Errorf("%s: got status %d", url, resp.StatusCode)
		}
	}
	return n
}

// slowReleases makes every script but the first one that is seen, which is that of the acquisition, take d
// more.
func slowReleases(link interface {
	OnCommand(func([]string) servertest.Verdict)
}, d time.Duration) {
	var mu sync.Mutex
	var acquire string
	link.OnCommand(func(args []string) servertest.Verdict {
		if !strings.EqualFold(args[0], "evalsha") {
			return servertest.Pass
		}
		mu.Lock()
		defer mu.Unlock()
		if acquire == "" {
			acquire = args[1]
		}
		if acquire == args[1] {
			return servertest.Pass
		}
		until := make(chan struct{})
		time.AfterFunc(d, func() { close(until) })
		return servertest.HoldRequest(until)
	})
}

func TestSequentialRequestsOfOneClientDoNotConflict(t *testing.T) {
	bubble(t, func(t *testing.T, b *servertest.Bubble) {
		api := newReplica(t, b)
		s := serve(t, largeResponses(api.Locker))
		s.Transport.(*http.Transport).DisableKeepAlives = true
		slowReleases(api.link, 2*time.Millisecond)
		if n := conflicts(t, &s.Client, "http://127.0.0.1/default/42"); n != 0 {
			t.Errorf("%d of %d requests were refused because of the one before", n, sequential)
		}
		if n := conflicts(t, &s.Client, "http://127.0.0.1/at-once/43"); n < sequential/4 {
			t.Errorf("only %d of %d were refused without a wait: this test tests nothing", n, sequential)
		}
	})
}

func TestSequentialRequestsOfOneClientDoNotConflictOnRealServers(t *testing.T) {
	proxy := servertest.Proxy(t, servertest.Redis(t).Addr())
	rdb := proxy.Client()
	server := httptest.NewServer(largeResponses(newLocker(t, rdb)))
	t.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	slowReleases(proxy, 2*time.Millisecond)
	// A loaded machine may stop everything for longer than the wait: a few of that kind are not what we look
	// for.
	if n := conflicts(t, client, server.URL+"/default/42"); n > sequential/20 {
		t.Errorf("%d of %d requests were refused because of the one before", n, sequential)
	}
	if n := conflicts(t, client, server.URL+"/at-once/43"); n < sequential/4 {
		t.Errorf("only %d of %d were refused without a wait: this test tests nothing", n, sequential)
	}
}

func TestRequestsOnClosedRedisAreRefusedInTime(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { rdb.Close() })
	router := route(ginlock.New(newLocker(t, rdb), "order", byID), ok)
	wantStatus(t, get(router, "/orders/42"), http.StatusOK)
	m.Close()
	begin := time.Now()
	w := get(router, "/orders/42")
	if took := time.Since(begin); took > 10*time.Second { // 1 s, and a loaded machine
		t.Errorf("took %v", took)
	}
	wantProblem(t, w, http.StatusServiceUnavailable, "5", "could not be taken")
}

func newLocker(t *testing.T, rdb *redis.Client) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := l.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
	return l
}
