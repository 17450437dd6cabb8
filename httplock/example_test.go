package httplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/httplock"
	"github.com/redis/go-redis/v9"
)

// newExampleLocker makes a Locker on a Redis server inside the process.
func newExampleLocker() (locker *holdfast.Locker, closeAll func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	if locker, err = holdfast.New(rdb); err != nil {
		panic(err)
	}
	return locker, func() {
		_ = locker.Shutdown(context.Background())
		_ = rdb.Close()
		server.Close()
	}
}

// post sends a request and sums up the answer.
func post(h http.Handler, path, body string) string {
	w := send(h, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	var problem struct{ Title string }
	if json.Unmarshal(w.Body.Bytes(), &problem) == nil {
		return fmt.Sprint(w.Code, " ", problem.Title)
	}
	return fmt.Sprint(w.Code, " ", w.Body)
}

func payments(ctx context.Context, order string) string { return "paid order " + order }

func Example() {
	locker, closeAll := newExampleLocker() // holdfast.New(rdb)
	defer closeAll()

	lock := httplock.Middleware(locker, "order", httplock.Path("id"))
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, payments(r.Context(), r.PathValue("id"))) // the context ends if the lock is lost
	})))
	fmt.Println(post(mux, "/orders/42/pay", ""))

	worker, _ := locker.Acquire(context.Background(), holdfast.Key("order", "42")) // the same order in a task
	fmt.Println(post(mux, "/orders/42/pay", ""))
	fmt.Println(post(mux, "/orders/43/pay", ""))
	_ = worker.Release(context.Background())
	// Output:
	// 200 paid order 42
	// 409 Conflict
	// 200 paid order 43
}

// The handler can still read the body.
func ExampleJSON() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	lock := httplock.Middleware(locker, "account", httplock.JSON("data", "account_id"))
	h := lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "under %s: %s", holdfast.Held(r.Context())[0].Key(), body)
	}))
	fmt.Println(post(h, "/payouts", `{"data": {"account_id": 42}}`))
	fmt.Println(post(h, "/payouts", `{"data": {}}`))
	// Output:
	// 200 under account:42: {"data": {"account_id": 42}}
	// 400 Bad Request
}

// At most two calls to a host are under way at a time, from all replicas. One more waits, or fails as here.
func ExampleTransport() {
	locker, closeAll := newExampleLocker()
	defer closeAll()
	provider := httptest.NewServer(http.HandlerFunc(ok))
	defer provider.Close()

	client := &http.Client{Transport: httplock.Transport(locker, "provider", httplock.Host, nil,
		httplock.WithLimit(2), httplock.WithBusy(httplock.Wait(0)))}
	one, _ := client.Get(provider.URL)
	two, _ := client.Get(provider.URL)
	_, err := client.Get(provider.URL)
	fmt.Println("busy:", errors.Is(err, holdfast.ErrNotAcquired))

	_ = one.Body.Close() // the end of its call
	three, err := client.Get(provider.URL)
	fmt.Println(three.Status, err)
	_ = two.Body.Close()
	_ = three.Body.Close()
	// Output:
	// busy: true
	// 200 OK <nil>
}
