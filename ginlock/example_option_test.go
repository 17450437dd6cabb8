package ginlock_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/holdfast-go/holdfast/core"
	"github.com/holdfast-go/holdfast/ginlock"
	"github.com/redis/go-redis/v9"
)

// New panics if an argument or option is wrong: when the program starts, not in a request.
func ExampleNew() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	defer func() { fmt.Println(recover()) }()
	ginlock.New(locker, "", ginlock.Param("id"), ginlock.WithBusy(ginlock.Wait(-time.Second)))
	// Output: ginlock: New: WithBusy(Wait(-1s)): negative; no resource
}

// The request's context carries the lock, which has the token and the key.
func ExampleNew_held() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/orders/:id", ginlock.New(locker, "order", ginlock.Param("id")), func(c *gin.Context) {
		lock := holdfast.Held(c.Request.Context())[0]
		c.String(http.StatusOK, fmt.Sprint(lock.Key(), " with a token: ", lock.Token() > 0))
	})
	fmt.Println(post(router, "/orders/42"))
	// Output: 200 order:42 with a token: true
}

// Wait(0) refuses a request at once. The default of 100 ms lets requests follow each other.
func ExampleWithBusy() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/orders/:id", ginlock.New(locker, "order", ginlock.Param("id"), ginlock.WithBusy(ginlock.Wait(0))), key)
	worker, _ := locker.Acquire(context.Background(), holdfast.Key("order", "42"))
	fmt.Println(post(router, "/orders/42"))
	_ = worker.Release(context.Background())
	// Output: 409 Conflict
}

// A handler that hangs does not hold its order for longer than a minute.
func ExampleWithLock() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	bound := ginlock.WithLock(holdfast.WithMaxHold(time.Minute), holdfast.WithLabel("api-7f9c"))
	router.POST("/orders/:id", ginlock.New(locker, "order", ginlock.Param("id"), bound), func(c *gin.Context) {
		state, _ := locker.Inspect(c.Request.Context(), "order:42")
		c.String(http.StatusOK, state.Label)
	})
	fmt.Println(post(router, "/orders/42"))
	// Output: 200 api-7f9c
}

// All requests of a group take the lock, except those that only read.
func ExampleNew_exempt() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	reads := func(c *gin.Context) bool { return c.Query("dry") != "" }
	lock := ginlock.New(locker, "order", ginlock.Param("id"))
	orders := router.Group("/orders/:id", func(c *gin.Context) {
		if !reads(c) {
			lock(c)
		}
	})
	orders.POST("/pay", func(c *gin.Context) {
		c.String(http.StatusOK, fmt.Sprint("under a lock: ", len(holdfast.Held(c.Request.Context())) > 0))
	})
	fmt.Println(post(router, "/orders/42/pay"))
	fmt.Println(post(router, "/orders/42/pay?dry=1"))
	// Output:
	// 200 under a lock: true
	// 200 under a lock: false
}

// One replica at a time warms a cache. While Redis is down, every replica does.
func ExampleWithFailOpen() {
	locker, closeRedis := newDownLocker()
	defer closeRedis()

	router := gin.New()
	router.POST("/warm/:id", ginlock.New(locker, "warm", ginlock.Param("id"), ginlock.WithFailOpen(), ginlock.WithBusy(ginlock.Wait(0))), func(c *gin.Context) {
		c.String(http.StatusOK, fmt.Sprint("under a lock: ", len(holdfast.Held(c.Request.Context())) > 0))
	})
	fmt.Println(post(router, "/warm/42"))
	// Output: 200 under a lock: false
}

// newDownLocker makes a Locker whose Redis is down.
func newDownLocker() (locker *holdfast.Locker, closeAll func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	server.Close()
	// A request waits for a quarter of the TTL if Redis does not answer.
	if locker, err = holdfast.New(rdb, holdfast.WithTTL(100*time.Millisecond)); err != nil {
		panic(err)
	}
	return locker, func() {
		_ = locker.Shutdown(context.Background())
		_ = rdb.Close()
	}
}

// A test of a route under a lock needs no mock. For a busy key, the test holds the lock itself. For an outage, it uses a
// Locker whose Redis is down.
func Example_unitTest() {
	locker, closeAll := newExampleLocker() // on miniredis.RunT(t) in a test
	defer closeAll()
	down, closeDown := newDownLocker()
	defer closeDown()
	routes := func(l *holdfast.Locker) http.Handler {
		router := gin.New()
		router.POST("/orders/:id", ginlock.New(l, "order", ginlock.Param("id"), ginlock.WithBusy(ginlock.Wait(0))), key)
		return router
	}

	fmt.Println("free:", post(routes(locker), "/orders/42"))
	held, _ := locker.TryAcquire(context.Background(), holdfast.Key("order", "42"))
	fmt.Println("held:", post(routes(locker), "/orders/42"))
	_ = held.Release(context.Background())
	fmt.Println("unavailable:", post(routes(down), "/orders/42"))
	// Output:
	// free: 200 order:42
	// held: 409 Conflict
	// unavailable: 503 Service Unavailable
}

// A middleware without WithErrorHandler answers with Respond. An error handler can call it too.
func ExampleRespond() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	router.POST("/orders/:id", ginlock.New(locker, "order", ginlock.Param("id"), ginlock.WithBusy(ginlock.Wait(0)),
		ginlock.WithErrorHandler(func(c *gin.Context, err error) {
			c.Header("Locked", "yes")
			ginlock.Respond(c, err)
		})))
	worker, _ := locker.Acquire(context.Background(), holdfast.Key("order", "42"))
	fmt.Println(post(router, "/orders/42"))
	_ = worker.Release(context.Background())
	// Output: 409 Conflict
}

// At most two exports of a tenant run at a time. The third is refused with 429.
func ExampleWithLimit() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	exports := ginlock.New(locker, "tenant", ginlock.Param("id"), ginlock.WithLimit(2), ginlock.WithBusy(ginlock.Wait(0)))
	router.POST("/tenants/:id/export", exports, func(c *gin.Context) { c.String(http.StatusOK, "exported") })

	running := func() *holdfast.Lock { // on another replica
		lock, _ := locker.Acquire(context.Background(), holdfast.Key("tenant", "7"), holdfast.WithLimit(2))
		return lock
	}
	one, two := running(), running()
	fmt.Println(post(router, "/tenants/7/export"))
	_ = one.Release(context.Background())
	fmt.Println(post(router, "/tenants/7/export"))
	_ = two.Release(context.Background())
	// Output:
	// 429 Too Many Requests
	// 200 exported
}

// A transfer locks both accounts, in whichever direction the money goes.
func ExampleWithAlso() {
	locker, closeAll := newExampleLocker()
	defer closeAll()

	router := gin.New()
	both := ginlock.New(locker, "account", ginlock.Query("from"), ginlock.WithAlso("account", ginlock.Query("to")))
	router.POST("/transfers", both, func(c *gin.Context) {
		c.String(http.StatusOK, fmt.Sprint(len(holdfast.Held(c.Request.Context())), " locks"))
	})
	fmt.Println(post(router, "/transfers?from=2&to=1"))

	payout, _ := locker.Acquire(context.Background(), holdfast.Key("account", "1"))
	fmt.Println(post(router, "/transfers?from=2&to=1"))
	_ = payout.Release(context.Background())
	// Output:
	// 200 2 locks
	// 409 Conflict
}
