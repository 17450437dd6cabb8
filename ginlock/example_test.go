package ginlock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
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
func post(h http.Handler, path string, header ...string) string {
	w := send(h, httptest.NewRequest(http.MethodPost, path, nil), header...)
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

	router := gin.New()
	router.POST("/orders/:id/pay", ginlock.New(locker, "order", ginlock.Param("id")), func(c *gin.Context) {
		receipt := payments(c.Request.Context(), c.Param("id")) // the context ends if the lock is lost
		c.String(http.StatusOK, receipt)
	})
	fmt.Println(post(router, "/orders/42/pay"))

	worker, _ := locker.Acquire(context.Background(), holdfast.Key("order", "42")) // the same order in a task
	fmt.Println(post(router, "/orders/42/pay"))
	fmt.Println(post(router, "/orders/43/pay"))
	_ = worker.Release(context.Background())
	// Output:
	// 200 paid order 42
	// 409 Conflict
	// 200 paid order 43
}

// A key that a client chooses means something only for that client, and only on one route.
func ExampleParts_idempotencyKey() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	key := ginlock.Parts(ginlock.Value("user"), ginlock.Header("Idempotency-Key"))
	router := gin.New()
	router.Use(func(c *gin.Context) { c.Set("user", 7) }) // authentication
	router.POST("/orders", ginlock.New(locker, "create-order", key), func(c *gin.Context) {
		c.String(http.StatusOK, holdfast.Held(c.Request.Context())[0].Key())
	})
	fmt.Println(post(router, "/orders", "Idempotency-Key", `"8e03978e"`))
	fmt.Println(post(router, "/orders"))
	// Output:
	// 200 create-order:7:8e03978e
	// 400 Bad Request
}

// The error handler answers some requests itself, and leaves the others to Respond.
func ExampleWithErrorHandler() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/orders/:id", ginlock.New(locker, "order", ginlock.Param("id"), ginlock.WithBusy(ginlock.Wait(0)),
		ginlock.WithErrorHandler(func(c *gin.Context, err error) {
			if c.GetHeader("Accept") == "text/plain" {
				c.String(http.StatusConflict, "Somebody else is at it.")
			}
		})))

	worker, _ := locker.Acquire(context.Background(), holdfast.Key("order", "42"))
	fmt.Println(post(router, "/orders/42", "Accept", "text/plain"))
	fmt.Println(post(router, "/orders/42"))
	_ = worker.Release(context.Background())
	// Output:
	// 409 Somebody else is at it.
	// 409 Conflict
}

// Stream stops when the client goes away, but not when the lock is lost. So each step checks the context.
func ExampleNew_stream() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.GET("/reports/:id", ginlock.New(locker, "report", ginlock.Param("id")), func(c *gin.Context) {
		rows := 0
		c.Stream(func(w io.Writer) bool {
			if c.Request.Context().Err() != nil || rows == 3 {
				return false
			}
			rows++
			fmt.Fprint(w, "row ", rows, "\n")
			return true
		})
	})
	server := httptest.NewServer(router)
	defer server.Close()
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Get(server.URL + "/reports/2026")
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Print(string(body))
	// Output:
	// row 1
	// row 2
	// row 3
}
